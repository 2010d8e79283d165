//! Tokens with a role: which they are, how texts are cut at them, which end a generation.

use super::prefix::PrefixIndex;
use super::vocab::{Attr, SpecialIds, Vocab, VocabSource};

/// Names of end-of-turn tokens, the likeliest first, for files that give no `eot_token_id`.
const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const END_OF_MESSAGE: &[&str] = &["<|eom_id|>"];
const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPOSITORY: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEPARATOR: &[&str] = &["<|file_sep|>"];

/// Names that end a generation wherever they occur in a vocabulary.
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
/// Markup that carries the structure of an answer, so it is always part of the visible text.
const VISIBLE: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The tokens with a role, and those that end a generation.
pub(crate) struct Roles {
    pub(crate) ids: SpecialIds,
    /// Ascending.
    pub(crate) end_of_generation: Vec<u32>,
    /// Markup shown in the text; ascending.
    pub(crate) visible: Vec<u32>,
}

impl Roles {
    /// Finds the roles, by id where the file gives one and by name where not, and corrects properties of tokens.
    pub(crate) fn find(source: &VocabSource<'_>, mut ids: SpecialIds, vocab: &mut Vocab) -> Roles {
        let known = vocab.len() as u32;
        for id in all_mut(&mut ids) {
            *id = id.filter(|&id| id < known);
        }
        let mut roles: [(&mut Option<u32>, &[&str]); 8] = [
            (&mut ids.eot, END_OF_TURN),
            (&mut ids.eom, END_OF_MESSAGE),
            (&mut ids.fim_prefix, FIM_PREFIX),
            (&mut ids.fim_suffix, FIM_SUFFIX),
            (&mut ids.fim_middle, FIM_MIDDLE),
            (&mut ids.fim_pad, FIM_PAD),
            (&mut ids.fim_repository, FIM_REPOSITORY),
            (&mut ids.fim_separator, FIM_SEPARATOR),
        ];
        for (id, names) in &mut roles {
            if id.is_none() {
                **id = names.iter().find_map(|name| vocab.table.find(name.as_bytes()));
                if let Some(id) = **id {
                    vocab.attrs[id as usize].set(Attr::CONTROL);
                }
            }
        }

        let mut ends: Vec<u32> =
            [ids.fim_pad, ids.fim_repository, ids.fim_separator].into_iter().flatten().collect();
        let named = |vocab: &Vocab, name: &str| vocab.table.find(name.as_bytes());
        for name in END_OF_GENERATION {
            if let Some(id) = named(vocab, name) {
                vocab.attrs[id as usize].set(Attr::CONTROL);
                ends.push(id);
            }
        }
        ends.extend([ids.eos, ids.eot, ids.eom].into_iter().flatten());

        let mut visible: Vec<u32> = VISIBLE.iter().filter_map(|name| named(vocab, name)).collect();
        let is_end = |ends: &[u32], name| named(vocab, name).filter(|id| ends.contains(id));
        // In these formats <|end|> closes a part of the answer, not the answer.
        let has_call = is_end(&ends, "<|call|>").or(is_end(&ends, "<|calls|>")).is_some();
        let has_closer = is_end(&ends, "<|return|>").or(is_end(&ends, "<|flush|>")).is_some();
        if let (true, true, Some(end)) = (has_call, has_closer, is_end(&ends, "<|end|>")) {
            ends.retain(|&id| id != end);
            visible.push(end);
        }
        // In these vocabularies </s> is ordinary text.
        let plain_s = is_end(&ends, "<|tool_response>").or(is_end(&ends, "<|plamo:eos|>")).is_some();
        if let (true, Some(s)) = (plain_s, is_end(&ends, "</s>")) {
            ends.retain(|&id| id != s);
            vocab.attrs[s as usize] = Attr::NORMAL;
        }

        // Files disagree on the type of markup like <|user|>; a user's words must never spell it.
        for id in
            vocab.with(Attr::USER).filter(|&id| looks_like_markup(vocab.table.get(id))).collect::<Vec<_>>()
        {
            vocab.attrs[id as usize].clear(Attr::USER);
            vocab.attrs[id as usize].set(Attr::CONTROL);
            visible.push(id);
        }
        for &id in &visible {
            vocab.attrs[id as usize].set(Attr::CONTROL);
        }
        set_strips(source, vocab);
        for list in [&mut ends, &mut visible] {
            list.sort_unstable();
            list.dedup();
        }
        Roles { ids, end_of_generation: ends, visible }
    }
}

fn all_mut(ids: &mut SpecialIds) -> [&mut Option<u32>; 15] {
    [
        &mut ids.bos,
        &mut ids.eos,
        &mut ids.eot,
        &mut ids.eom,
        &mut ids.unknown,
        &mut ids.separator,
        &mut ids.padding,
        &mut ids.cls,
        &mut ids.mask,
        &mut ids.fim_prefix,
        &mut ids.fim_suffix,
        &mut ids.fim_middle,
        &mut ids.fim_pad,
        &mut ids.fim_repository,
        &mut ids.fim_separator,
    ]
}

fn looks_like_markup(token: &[u8]) -> bool {
    let between = |open: &str, close: &str| {
        token.len() > open.len() + close.len()
            && token.starts_with(open.as_bytes())
            && token.ends_with(close.as_bytes())
    };
    between("<|", "|>") || between("<｜", "｜>")
}

/// Which tokens swallow white space; the format has no field for it, so it goes by model.
fn set_strips(source: &VocabSource<'_>, vocab: &mut Vocab) {
    let name = source.name.to_lowercase();
    let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let mut lstrip = |token: &str| {
        if let Some(id) = vocab.table.find(token.as_bytes()) {
            vocab.attrs[id as usize].set(Attr::LSTRIP);
        }
    };
    if has(source.pre.unwrap_or_default(), &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
        || has(source.architecture, &["nomic-bert-moe", "jina-bert-v3"])
    {
        lstrip("<mask>");
    } else if has(&name, &["modern-bert"]) {
        lstrip("[MASK]");
    } else if has(&name, &["phi-3", "phi3"]) {
        for attr in &mut vocab.attrs {
            if attr.is(Attr::CONTROL.or(Attr::USER).or(Attr::UNKNOWN)) {
                attr.set(Attr::RSTRIP);
            }
        }
        for token in ["<unk>", "<s>", "<|endoftext|>"] {
            if let Some(id) = vocab.table.find(token.as_bytes()) {
                vocab.attrs[id as usize].clear(Attr::RSTRIP);
            }
        }
    }
}

/// Finds tokens that are matched as a whole, leftmost first and then longest.
pub(crate) struct Matcher {
    index: PrefixIndex,
}

impl Matcher {
    /// Matches the tokens with one of the properties `any` and none of `none`.
    pub(crate) fn new(vocab: &Vocab, any: Attr, none: Attr) -> Matcher {
        let ids = vocab.with(any).filter(|&id| !vocab.attr(id).is(none));
        Matcher { index: PrefixIndex::new(ids, &vocab.table) }
    }

    /// First match in `text[from..to]`: its start, end and token.
    pub(crate) fn find(&self, text: &[u8], from: usize, to: usize) -> Option<(usize, usize, u32)> {
        let window = &text[..to];
        (from..to).filter(|&at| self.index.starts_with(window[at])).find_map(|at| {
            let (len, id) = self.index.longest(&window[at..])?;
            Some((at, at + len, id))
        })
    }
}
