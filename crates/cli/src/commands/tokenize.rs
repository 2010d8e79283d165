//! `wootz tokenize`

use anyhow::Context as _;
use wootz::Segment;

use crate::args::TokenizeArgs;
use crate::{common, output};

pub(crate) fn run(args: &TokenizeArgs) -> anyhow::Result<()> {
    let text = output::text_argument(args.text.as_deref())?;
    let model = common::open_model(&args.model)?;
    let tokenizer = model.tokenizer();
    if args.decode {
        let ids: Vec<u32> = text
            .split(|c: char| c.is_whitespace() || [',', '[', ']'].contains(&c))
            .filter(|word| !word.is_empty())
            .map(|word| word.parse().with_context(|| format!("{word:?} is not a token id")))
            .collect::<anyhow::Result<_>>()?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= tokenizer.vocab_size()) {
            anyhow::bail!("token {id} is not in the vocabulary of {} tokens", tokenizer.vocab_size());
        }
        // Ids may stand for a part of a character.
        output::write(&tokenizer.decode(&ids, true))?;
        return output::println("");
    }
    let segment = if args.special { Segment::Markup(&text) } else { Segment::Text(text.as_bytes()) };
    let ids = tokenizer.encode(&[segment], !args.no_bos);
    if args.ids {
        return output::println(&serde_json::to_string(&ids)?);
    }
    let mut lines = String::new();
    for id in &ids {
        let piece = tokenizer.piece(*id, true);
        lines.push_str(&format!("{id:>8}  {:?}\n", String::from_utf8_lossy(&piece)));
    }
    lines.push_str(&format!("{} tokens", ids.len()));
    output::println(&lines)
}
