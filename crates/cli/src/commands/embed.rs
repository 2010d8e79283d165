//! `wootz embed`

use std::fmt::Write;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use wootz::embed::cosine;
use wootz::{Context, Embedding, Pooling};

use crate::args::EmbedArgs;
use crate::{common, output};

pub(crate) fn run(args: &EmbedArgs) -> anyhow::Result<()> {
    let texts = texts(&args.texts)?;
    let mut context =
        common::open_context(common::open_model(&args.model)?, &common::context_options(&args.device))?;
    if let Some(query) = &args.query {
        return rank(&mut context, args, query, &texts);
    }
    let model = context.model().clone();
    let tokens = texts.iter().map(|text| model.tokenize(text.as_bytes())).collect();
    let tokens = fitting(&context, args, tokens)?;
    let mut embeddings = context.embed(&tokens, args.pooling)?;
    for embedding in &mut embeddings {
        let own = embedding.rows.first().map_or(0, Vec::len);
        embedding.shorten(args.dimensions.unwrap_or(own), args.normalize)?;
    }
    let whole = args.pooling.or(model.pooling()) != Some(Pooling::None);
    ensure!(whole || !args.cosine, "--cosine compares one embedding of each text, not one of each token");
    match (args.json, args.cosine) {
        (true, _) => output::println(&object(&texts, &embeddings, whole).to_string()),
        (false, true) => output::print(&matrix(&embeddings)),
        (false, false) => {
            let rows = embeddings.iter().flat_map(|e| &e.rows);
            let line = |row: &Vec<f32>| row.iter().map(f32::to_string).collect::<Vec<_>>().join(" ");
            output::print(&rows.map(|row| line(row) + "\n").collect::<String>())
        }
    }
}

/// The texts given, or the lines of standard input that are not empty.
fn texts(given: &[String]) -> anyhow::Result<Vec<String>> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let input = output::text_argument(None)?;
    let lines: Vec<String> = input.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    ensure!(!lines.is_empty(), "there is no text: give texts after the model, or lines on standard input");
    Ok(lines)
}

/// The tokens of texts that fit the context, cut where that was asked for.
fn fitting(context: &Context, args: &EmbedArgs, mut texts: Vec<Vec<u32>>) -> anyhow::Result<Vec<Vec<u32>>> {
    let limit = context.limits().context;
    for (i, tokens) in texts.iter_mut().enumerate() {
        if args.truncate {
            context.model().cut_tokens(tokens, limit);
        }
        if tokens.len() > limit {
            let (number, length) = (i + 1, tokens.len());
            bail!(
                "text {number} has {length} tokens, the context {limit}: shorten it, or cut it with --truncate"
            );
        }
    }
    Ok(texts)
}

fn object(texts: &[String], embeddings: &[Embedding], whole: bool) -> Value {
    let numbers = |row: &Vec<f32>| -> Value { row.iter().map(|x| short(*x)).collect() };
    let list: Vec<Value> = texts
        .iter()
        .zip(embeddings)
        .map(|(text, e)| {
            let embedding = if whole {
                e.rows.first().map_or(Value::Null, numbers)
            } else {
                e.rows.iter().map(numbers).collect()
            };
            json!({ "text": text, "tokens": e.tokens, "embedding": embedding })
        })
        .collect();
    let mut object = json!({ "embeddings": list });
    if whole {
        object["cosine"] = cosines(embeddings).into_iter().map(Value::from).collect();
    }
    object
}

/// A number with the digits that an f32 needs, which is fewer than the same number has as an f64.
fn short(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn cosines(embeddings: &[Embedding]) -> Vec<Vec<f64>> {
    let rows = || embeddings.iter().filter_map(|e| e.rows.first());
    rows().map(|a| rows().map(|b| cosine(a, b)).collect()).collect()
}

fn matrix(embeddings: &[Embedding]) -> String {
    let mut text = String::new();
    for row in cosines(embeddings) {
        let line: String = row.iter().map(|x| format!("{x:>8.4}")).collect();
        let _ = writeln!(text, "{}", line.trim_start());
    }
    text
}

/// Scores of the texts by a query, the best first.
fn rank(context: &mut Context, args: &EmbedArgs, query: &str, texts: &[String]) -> anyhow::Result<()> {
    let model = context.model().clone();
    let pairs = texts.iter().map(|text| model.pair_tokens(query, text)).collect();
    let pairs = fitting(context, args, pairs)?;
    let scores = context.rank(&pairs)?;
    let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    if args.json {
        let entry =
            |(i, score): &(usize, f32)| json!({ "index": i, "score": short(*score), "text": texts[*i] });
        return output::println(
            &json!({ "ranking": ranked.iter().map(entry).collect::<Vec<_>>() }).to_string(),
        );
    }
    let line = |(i, score): &(usize, f32)| format!("{score:>10.4}  {}\n", texts[*i]);
    output::print(&ranked.iter().map(line).collect::<String>())
}
