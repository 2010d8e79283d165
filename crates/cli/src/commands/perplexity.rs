//! `wootz perplexity`

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde_json::json;
use wootz::gguf::AtomicFile;
use wootz::perplexity::{Divergence, Perplexity, check_length, each_prediction, log_softmax, nll};

use crate::args::PerplexityArgs;
use crate::output::Unit;
use crate::{common, output};

/// First bytes of a file of predictions.
const MAGIC: &[u8; 8] = b"wootzlp2";

pub(crate) fn run(args: &PerplexityArgs) -> anyhow::Result<()> {
    let text = output::read_input(&args.text)?;
    let model = common::open_model(&args.model)?;
    let mut tokens = model.tokenize(&text);
    if let Some(chunks) = args.chunks {
        tokens.truncate(chunks.saturating_mul(args.chunk));
    }
    let vocab = model.arch().hparams().vocab;
    let header = || header(vocab, args.chunk, &tokens);
    let mut saved = args.compare.as_deref().map(|p| Saved::open(p, vocab, header())).transpose()?;
    check_length(&tokens, args.chunk)?;
    let mut save = args.save.as_deref().map(|p| Save::create(p, header())).transpose()?;
    let mut device = args.device.clone();
    device.ctx = Some(device.ctx.unwrap_or(args.chunk).max(args.chunk));
    let mut context = common::open_context(model, &common::context_options(&device))?;

    let (mut perplexity, mut divergence) = (Perplexity::default(), Divergence::default());
    let bar = output::progress("perplexity", (tokens.len() / args.chunk.max(1)) as u64, Unit::Chunks);
    each_prediction(&mut context, &tokens, args.chunk, |chunk, token, logits| {
        bar.set_position(chunk as u64);
        perplexity.add(nll(logits, token));
        if let Some(save) = &mut save {
            save.row(&log_softmax(logits))?;
        }
        if let Some(saved) = &mut saved {
            divergence.add(saved.row()?, logits);
        }
        anyhow::Ok(())
    })?;
    output::clear_progress();
    if let Some(save) = save {
        save.finish()?;
    }
    let error = perplexity.error();
    if args.json {
        let mut object = json!({
            "perplexity": perplexity.value(), "error": error, "tokens": perplexity.count, "chunk": args.chunk,
        });
        if args.compare.is_some() {
            object["kl_mean"] = divergence.mean().into();
            object["kl_max"] = divergence.max.into();
            object["same_top"] = (divergence.same_top as f64 / divergence.count as f64).into();
        }
        return output::println(&object.to_string());
    }
    let error = error.map(|e| format!(" ± {e:.4}")).unwrap_or_default();
    output::println(&format!(
        "perplexity {:.4}{error} over {} tokens",
        perplexity.value(),
        perplexity.count
    ))?;
    if args.compare.is_some() {
        output::println(&format!(
            "Kullback-Leibler divergence mean {:.6}, largest {:.4}; same most likely token {:.2} %",
            divergence.mean(),
            divergence.max,
            100.0 * divergence.same_top as f64 / divergence.count as f64
        ))?;
    }
    Ok(())
}

/// What a file of predictions depends on, as its first numbers.
fn header(vocab: u32, chunk: usize, tokens: &[u32]) -> impl Iterator<Item = u32> {
    [vocab, chunk as u32, tokens.len() as u32].into_iter().chain(tokens.iter().copied())
}

/// Predictions on their way to a file, which has its name only once it is whole.
struct Save<'a> {
    path: &'a Path,
    file: AtomicFile,
}

impl<'a> Save<'a> {
    fn create(path: &'a Path, header: impl Iterator<Item = u32>) -> anyhow::Result<Save<'a>> {
        let mut save = Save { path, file: AtomicFile::create(path)? };
        save.write(MAGIC)?;
        for number in header {
            save.write(&number.to_le_bytes())?;
        }
        Ok(save)
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(bytes).with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn row(&mut self, logprobs: &[f32]) -> anyhow::Result<()> {
        logprobs.iter().try_for_each(|p| self.write(&p.to_le_bytes()))
    }

    fn finish(self) -> anyhow::Result<()> {
        Ok(self.file.commit()?)
    }
}

/// Predictions saved before.
struct Saved<'a> {
    path: &'a Path,
    file: BufReader<File>,
    row: Vec<f32>,
}

impl<'a> Saved<'a> {
    fn open(path: &'a Path, vocab: u32, header: impl Iterator<Item = u32>) -> anyhow::Result<Saved<'a>> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut saved = Saved { path, file: BufReader::new(file), row: vec![0.0; vocab as usize] };
        let mut magic = [0; 8];
        let read = saved.file.read_exact(&mut magic);
        ensure!(
            read.is_ok() && magic == *MAGIC,
            "{} holds no predictions saved by `wootz perplexity --save`",
            path.display()
        );
        for (at, expected) in header.enumerate() {
            let mut bytes = [0; 4];
            saved.read(&mut bytes)?;
            let found = u32::from_le_bytes(bytes);
            let what = match at {
                0 => "a vocabulary of",
                1 => "--chunk",
                // Beyond are the text's length and its tokens.
                _ if found != expected => bail!("{} was saved from another text", path.display()),
                _ => continue,
            };
            ensure!(
                found == expected,
                "{} was saved with {what} {found}, this run has {expected}",
                path.display()
            );
        }
        Ok(saved)
    }

    fn read(&mut self, bytes: &mut [u8]) -> anyhow::Result<()> {
        self.file.read_exact(bytes).with_context(|| format!("cannot read {}", self.path.display()))
    }

    fn row(&mut self) -> anyhow::Result<&[f32]> {
        let mut bytes = vec![0; 4 * self.row.len()];
        self.read(&mut bytes)?;
        for (value, b) in self.row.iter_mut().zip(bytes.chunks_exact(4)) {
            *value = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        }
        Ok(&self.row)
    }
}
