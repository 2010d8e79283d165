//! Embeddings of texts and scores of pairs.
//!
//! Texts of one call run together in as few steps as fit, and do not see each other: the numbers are those that each
//! text gives alone, bit for bit. Rows are pooled on the caller's thread, in the order of positions and in f64.

use wootz_graph::{BLOCK_TOKENS, Wants};
use wootz_text::Segment;

pub use wootz_arch::Pooling;

use crate::context::{Context, Limits, RowsWanted, SequenceId, StepPart};
use crate::error::Error;
use crate::model::Model;

/// Tokens of several texts in one step: more do not make products faster.
const TOGETHER: usize = 512;

/// Where files keep the template of a pair that is ranked.
const RANK_TEMPLATE: &str = "tokenizer.chat_template.rerank";

/// The label whose probability is the score, where a classifier has several.
const YES: &str = "yes";

/// What a text became.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Tokens of the text.
    pub tokens: usize,
    /// `[rows, dimensions]`: one row, or with [`Pooling::None`] one a token. Not normalised.
    pub rows: Vec<Vec<f32>>,
}

impl Embedding {
    /// Keeps the first `dimensions` numbers of each row, and normalises the rows.
    ///
    /// # Errors
    /// Rows are shorter.
    pub fn shorten(&mut self, dimensions: usize, norm: Norm) -> Result<(), Error> {
        for row in &mut self.rows {
            if dimensions > row.len() {
                return Err(Error::Dimensions { asked: dimensions, dimensions: row.len() });
            }
            row.truncate(dimensions);
            norm.apply(row);
        }
        Ok(())
    }
}

/// What embeddings are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Nothing.
    None,
    /// That which makes the largest magnitude 32,760, as for numbers of 16 bits.
    MaxInt16,
    /// The sum of powers `p` of the magnitudes, to the power `1 / p`: 1 for taxicab, 2 for Euclid's length.
    P(u32),
}

impl Norm {
    /// The norm by the number that llama.cpp gives it: -1 none, 0 largest magnitude, else the power.
    pub fn from_number(number: i64) -> Option<Norm> {
        match number {
            -1 => Some(Norm::None),
            0 => Some(Norm::MaxInt16),
            p => u32::try_from(p).ok().map(Norm::P),
        }
    }

    /// Divides a vector; one of zeros stays as it is.
    pub fn apply(self, vector: &mut [f32]) {
        let magnitudes = vector.iter().map(|x| f64::from(x.abs()));
        let divisor = match self {
            Norm::None => return,
            Norm::MaxInt16 => magnitudes.fold(0.0, f64::max) / 32_760.0,
            Norm::P(2) => magnitudes.map(|x| x * x).sum::<f64>().sqrt(),
            Norm::P(p) => magnitudes.map(|x| x.powi(p as i32)).sum::<f64>().powf(1.0 / f64::from(p)),
        };
        if divisor > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / divisor) as f32);
        }
    }
}

/// Cosine of the angle between two vectors of one length; 0 where one of them has none.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum() };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}

impl Model {
    /// What the model is made to give, for people.
    pub fn gives(&self) -> &'static str {
        match self.arch().wants() {
            Wants::Logits => "text",
            Wants::Hidden => "embeddings",
            Wants::Scores => "rankings",
        }
    }

    /// Whether the model generates text.
    ///
    /// # Errors
    /// It does not; the error says what it gives.
    pub fn check_generates(&self) -> Result<(), Error> {
        match self.arch().wants() {
            Wants::Logits => Ok(()),
            Wants::Hidden | Wants::Scores => Err(Error::WrongUse { gives: self.gives(), asked: "text" }),
        }
    }

    /// How the rows of a text become its embedding: as the file says, by the mean where an encoder's file says nothing;
    /// `None` for a model that generates text.
    pub fn pooling(&self) -> Option<Pooling> {
        let hp = self.arch().hparams();
        match self.arch().wants() {
            Wants::Logits => None,
            Wants::Hidden | Wants::Scores => Some(hp.pooling.unwrap_or(Pooling::Mean)),
        }
    }

    /// The way of pooling that makes embeddings, where one is given or the model has one.
    pub(crate) fn embeds_by(&self, pooling: Option<Pooling>) -> Result<Pooling, Error> {
        let pooling = pooling.or(self.pooling()).filter(|pooling| *pooling != Pooling::Rank);
        pooling.ok_or(Error::WrongUse { gives: self.gives(), asked: "embeddings" })
    }

    /// What makes scores of the classifier's rows.
    pub(crate) fn scores(&self) -> Result<Scores, Error> {
        if self.arch().wants() != Wants::Scores {
            return Err(Error::WrongUse { gives: self.gives(), asked: "rankings" });
        }
        let labels = &self.arch().hparams().labels;
        Ok(Scores { yes: labels.iter().position(|label| label == YES).unwrap_or(0) })
    }

    /// Checks texts that are to be embedded.
    pub(crate) fn check_texts(&self, texts: &[Vec<u32>], limits: &Limits) -> Result<(), Error> {
        let vocab = self.arch().hparams().vocab;
        for tokens in texts {
            if tokens.is_empty() {
                return Err(Error::EmptyPrompt);
            }
            if let Some(token) = tokens.iter().find(|t| **t >= vocab) {
                return Err(Error::BadToken { token: *token, vocab });
            }
            if tokens.len() > limits.context {
                return Err(Error::TextTooLong { tokens: tokens.len(), context: limits.context });
            }
        }
        Ok(())
    }

    /// Tokens of a query and a document that are ranked together: by the file's template or, without one, one after the
    /// other with the separators that the vocabulary has.
    pub fn pair_tokens(&self, query: &str, document: &str) -> Vec<u32> {
        let tokenizer = self.tokenizer();
        if let Some(template) = self.file().meta().opt_str(RANK_TEMPLATE).ok().flatten() {
            return tokenizer.encode(&pair_segments(template, query, document), true);
        }
        let ids = tokenizer.special_ids();
        let eos = ids.eos.filter(|_| tokenizer.adds_eos());
        let mut tokens: Vec<u32> = ids.bos.filter(|_| tokenizer.adds_bos()).into_iter().collect();
        tokens.extend(tokenizer.encode(&[Segment::Text(query.as_bytes())], false));
        tokens.extend(eos);
        tokens.extend(ids.separator);
        tokens.extend(tokenizer.encode(&[Segment::Text(document.as_bytes())], false));
        tokens.extend(eos.or(ids.separator));
        tokens
    }

    /// Cuts the tokens of a text to `length`; a token that ends every text stays the last.
    pub fn cut_tokens(&self, tokens: &mut Vec<u32>, length: usize) {
        if tokens.len() <= length {
            return;
        }
        let end = tokens.last().copied().filter(|last| self.tokenize(b"").last() == Some(last));
        tokens.truncate(length);
        if let (Some(end), Some(last)) = (end, tokens.last_mut()) {
            *last = end;
        }
    }
}

/// A template's markup, with the texts in their places.
fn pair_segments<'a>(template: &'a str, query: &'a str, document: &'a str) -> Vec<Segment<'a>> {
    const PLACES: [&str; 2] = ["{query}", "{document}"];
    let mut segments = Vec::new();
    let mut rest = template;
    loop {
        let next = PLACES.iter().filter_map(|place| Some((rest.find(place)?, *place))).min();
        let Some((at, place)) = next else { break };
        segments.push(Segment::Markup(&rest[..at]));
        let text = if place == PLACES[0] { query } else { document };
        segments.push(Segment::Text(text.as_bytes()));
        rest = &rest[at + place.len()..];
    }
    segments.push(Segment::Markup(rest));
    segments
}

/// A text on its way through the steps.
struct Text<'a> {
    tokens: &'a [u32],
    sequence: SequenceId,
    done: usize,
    pool: Pool,
}

impl Context {
    /// Embeddings of texts, by the model's own way of pooling where `pooling` is `None`.
    ///
    /// # Errors
    /// The model generates text and no pooling is given, or it is [`Pooling::Rank`]; a text is empty, holds an unknown
    /// token or is longer than the context; a step fails.
    pub fn embed(&mut self, texts: &[Vec<u32>], pooling: Option<Pooling>) -> Result<Vec<Embedding>, Error> {
        let pooling = self.model().embeds_by(pooling)?;
        self.pooled(texts, pooling, Wants::Hidden)
    }

    /// Scores of pairs that [`Model::pair_tokens`] made: what the classifier gives or, where it has several labels, the
    /// probability of the one that says yes.
    ///
    /// # Errors
    /// The model has no classifier; a text is empty, holds an unknown token or is longer than the context; a step fails.
    pub fn rank(&mut self, pairs: &[Vec<u32>]) -> Result<Vec<f32>, Error> {
        let scores = self.model().scores()?;
        Ok(scores.of(&self.pooled(pairs, Pooling::Rank, Wants::Scores)?))
    }

    /// Runs texts in as few steps as fit and pools their rows.
    fn pooled(
        &mut self,
        texts: &[Vec<u32>],
        pooling: Pooling,
        wants: Wants,
    ) -> Result<Vec<Embedding>, Error> {
        let limits = self.limits();
        self.model().check_texts(texts, &limits)?;
        let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let mut results = Vec::with_capacity(texts.len());
        while results.len() < texts.len() {
            let rest = &texts[results.len()..];
            let together = self.turns(&[rest.iter().map(|text| text.len()).collect()]).len();
            results.extend(self.pooled_together(&rest[..together], pooling, wants)?);
        }
        Ok(results)
    }

    /// Texts that run in one step, given by the lengths of what each request has left.
    pub(crate) fn turns(&self, requests: &[Vec<usize>]) -> Vec<Turn> {
        let blocks = self.blocks().min().unwrap_or(0);
        turns(requests, self.limits().batch.min(TOGETHER), blocks)
    }

    /// Runs texts that fit one step, or one text, and pools their rows.
    pub(crate) fn pooled_together(
        &mut self,
        texts: &[&[u32]],
        pooling: Pooling,
        wants: Wants,
    ) -> Result<Vec<Embedding>, Error> {
        let mut open = Vec::with_capacity(texts.len());
        let result =
            self.open_texts(texts, pooling, &mut open).and_then(|()| self.run_texts(&mut open, wants));
        for text in &open {
            self.close(text.sequence);
        }
        result?;
        let done = |text: Text<'_>| Embedding { tokens: text.tokens.len(), rows: text.pool.finish() };
        Ok(open.into_iter().map(done).collect())
    }

    fn open_texts<'a>(
        &mut self,
        texts: &[&'a [u32]],
        pooling: Pooling,
        open: &mut Vec<Text<'a>>,
    ) -> Result<(), Error> {
        let pool = Pool::new(pooling, self.model().arch().hparams().causal);
        for tokens in texts {
            // Only the last row is wanted: what is cached of the others need not be computed.
            let known = if pool.rows == RowsWanted::Last { &tokens[..tokens.len() - 1] } else { &[] };
            let (sequence, done) = self.open_prefix(known)?;
            open.push(Text { tokens, sequence, done, pool: pool.clone() });
        }
        Ok(())
    }

    fn run_texts(&mut self, texts: &mut [Text<'_>], wants: Wants) -> Result<(), Error> {
        loop {
            let mut left = self.limits().batch;
            let mut running = Vec::new();
            let mut parts = Vec::new();
            for (i, text) in texts.iter().enumerate() {
                let n = (text.tokens.len() - text.done).min(left);
                if n > 0 {
                    left -= n;
                    let tokens = &text.tokens[text.done..text.done + n];
                    let rows = text.pool.wanted(text.done, text.done + n == text.tokens.len());
                    parts.push(StepPart { sequence: text.sequence, tokens, rows });
                    running.push((i, n, rows));
                }
            }
            if parts.is_empty() {
                return Ok(());
            }
            let output = self.step_for(&parts, wants)?;
            let mut row = 0;
            for (i, n, rows) in running {
                let count = match rows {
                    RowsWanted::None => 0,
                    RowsWanted::First | RowsWanted::Last => 1,
                    RowsWanted::All => n,
                };
                (row..row + count).for_each(|row| texts[i].pool.add(output.row(row)));
                row += count;
                texts[i].done += n;
            }
        }
    }
}

/// A text that runs: the place of its request, and of it in the request.
pub(crate) type Turn = (usize, usize);

/// Texts that run in one step, in turns of their requests, given by the lengths of what each has left; at least one.
fn turns(requests: &[Vec<usize>], tokens: usize, blocks: usize) -> Vec<Turn> {
    let (mut tokens, mut blocks) = (tokens, blocks);
    let mut taken: Vec<Turn> = Vec::new();
    let longest = requests.iter().map(Vec::len).max().unwrap_or(0);
    // A request whose next text does not fit is passed over until the next step: its texts stay in order.
    let mut open = vec![true; requests.len()];
    for round in 0..longest {
        for (i, lengths) in requests.iter().enumerate() {
            let Some(length) = lengths.get(round).filter(|_| open[i]) else { continue };
            let needed = length.div_ceil(BLOCK_TOKENS);
            open[i] = taken.is_empty() || (*length <= tokens && needed <= blocks);
            if open[i] {
                tokens = tokens.saturating_sub(*length);
                blocks = blocks.saturating_sub(needed);
                taken.push((i, round));
            }
        }
    }
    taken
}

/// Makes scores of pairs from those of the classifier's labels.
pub(crate) struct Scores {
    /// The label that says yes.
    yes: usize,
}

impl Scores {
    pub(crate) fn of(&self, pairs: &[Embedding]) -> Vec<f32> {
        pairs.iter().filter_map(|pair| pair.rows.first()).map(|labels| self.one(labels)).collect()
    }

    fn one(&self, labels: &[f32]) -> f32 {
        if labels.len() == 1 {
            return labels[0];
        }
        let max = labels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights = labels.iter().map(|x| f64::from(x - max).exp());
        let sum: f64 = weights.clone().sum();
        (weights.clone().nth(self.yes).unwrap_or(0.0) / sum) as f32
    }
}

/// The rows of a text as they come.
#[derive(Clone)]
struct Pool {
    pooling: Pooling,
    rows: RowsWanted,
    kept: Vec<Vec<f32>>,
    sum: Vec<f64>,
    count: usize,
}

impl Pool {
    fn new(pooling: Pooling, causal: bool) -> Pool {
        let rows = match pooling {
            Pooling::None | Pooling::Mean => RowsWanted::All,
            // Only the last token has seen all of a text that is read forwards.
            Pooling::Rank if causal => RowsWanted::Last,
            Pooling::Cls | Pooling::Rank => RowsWanted::First,
            Pooling::Last => RowsWanted::Last,
        };
        Pool { pooling, rows, kept: Vec::new(), sum: Vec::new(), count: 0 }
    }

    /// Rows wanted of a piece that starts at a position.
    fn wanted(&self, start: usize, last: bool) -> RowsWanted {
        match self.rows {
            RowsWanted::First if start > 0 => RowsWanted::None,
            RowsWanted::Last if !last => RowsWanted::None,
            rows => rows,
        }
    }

    fn add(&mut self, row: &[f32]) {
        if self.pooling != Pooling::Mean {
            return self.kept.push(row.to_vec());
        }
        self.sum.resize(row.len(), 0.0);
        self.sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        self.count += 1;
    }

    fn finish(self) -> Vec<Vec<f32>> {
        match self.pooling {
            Pooling::Mean => vec![self.sum.iter().map(|x| (x / self.count as f64) as f32).collect()],
            _ => self.kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_those_of_their_formulas() {
        let apply = |number: i64, v: &[f32]| {
            let mut v = v.to_vec();
            Norm::from_number(number).unwrap().apply(&mut v);
            v
        };
        assert_eq!(apply(-1, &[3.0, -4.0]), [3.0, -4.0]);
        assert_eq!(apply(0, &[3.0, -4.0]), [24_570.0, -32_760.0]);
        assert_eq!(apply(1, &[3.0, -5.0]), [0.375, -0.625]);
        assert_eq!(apply(2, &[3.0, -4.0]), [0.6, -0.8]);
        assert_eq!(apply(3, &[3.0, -4.0, 5.0]), [0.5, -4.0 / 6.0, 5.0 / 6.0]);
        assert_eq!(apply(2, &[0.0, 0.0]), [0.0, 0.0]);
        assert_eq!(Norm::from_number(-2), None);
    }

    #[test]
    fn a_shorter_embedding_has_length_one() {
        let mut e = Embedding { tokens: 1, rows: vec![vec![3.0, 4.0, 12.0]] };
        e.shorten(2, Norm::P(2)).unwrap();
        assert_eq!(e.rows, [[0.6, 0.8]]);
        let e = e.shorten(3, Norm::None).unwrap_err();
        assert_eq!(e.to_string(), "3 dimensions are asked for, embeddings of the model have 2");
    }

    #[test]
    fn cosines_are_those_of_angles() {
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
        assert_eq!(cosine(&[1.0, 0.0], &[-3.0, 0.0]), -1.0);
        assert!((cosine(&[1.0, 1.0], &[2.0, 0.0]) - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(cosine(&[0.0, 0.0], &[2.0, 0.0]), 0.0);
    }

    #[test]
    fn groups_fit_tokens_and_blocks() {
        let group = |lengths: &[usize], tokens, blocks| turns(&[lengths.to_vec()], tokens, blocks).len();
        assert_eq!(group(&[10, 10, 10], 25, 100), 2);
        assert_eq!(group(&[10, 33, 10], 100, 3), 2);
        assert_eq!(group(&[1000, 10], 100, 3), 1);
    }

    #[test]
    fn requests_take_turns_as_far_as_texts_fit() {
        let requests = [vec![10, 10, 10], vec![5], vec![], vec![10, 1]];
        assert_eq!(turns(&requests, 100, 100), [(0, 0), (1, 0), (3, 0), (0, 1), (3, 1), (0, 2)]);
        // 36 tokens: the second round takes what fits, and nothing of a request behind what did not.
        assert_eq!(turns(&requests, 36, 100), [(0, 0), (1, 0), (3, 0), (0, 1), (3, 1)]);
        assert_eq!(turns(&[vec![30, 1], vec![10, 10]], 25, 100), [(0, 0)]);
        assert_eq!(turns(&[vec![10, 30, 1], vec![10, 5]], 30, 100), [(0, 0), (1, 0), (1, 1)]);
        // Each takes a block of its own.
        assert_eq!(turns(&requests, 100, 2), [(0, 0), (1, 0)]);
        assert_eq!(turns(&[vec![500]], 100, 2), [(0, 0)]);
    }

    #[test]
    fn a_template_takes_texts_once() {
        let segments = pair_segments("<q>{query}</q>{document}.", "a {document}", "b");
        let expected = [
            Segment::Markup("<q>"),
            Segment::Text(b"a {document}"),
            Segment::Markup("</q>"),
            Segment::Text(b"b"),
            Segment::Markup("."),
        ];
        assert_eq!(segments, expected);
    }

    #[test]
    fn the_probability_of_yes_is_the_score() {
        let score = |labels: &[f32], yes: usize| Scores { yes }.one(labels);
        assert_eq!(score(&[-3.5], 0), -3.5);
        assert!((score(&[2.0, 0.0], 0) - 0.880_797).abs() < 1e-6);
        assert!((score(&[2.0, 0.0], 1) - 0.119_203).abs() < 1e-6);
    }
}
