//! An opened model: its file, family, tokenizer and chat template, but nothing on a device.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use wootz_arch::ArchError;
use wootz_graph::{MemoryUse, WeightId, WeightSource};
use wootz_text::template::{
    ChatInput, ChatTemplate, Prompt, Segment as PromptSegment, SpecialTokens, TemplateKind,
};
use wootz_text::{Segment, Tokenizer};

use crate::error::Error;
use crate::options::ContextOptions;
use crate::sample::Vocab;

/// Choices that override what the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// Pre-tokenizer in place of the file's `tokenizer.ggml.pre`.
    pub pretokenizer: Option<String>,
    /// Chat template source in place of the file's.
    pub chat_template: Option<String>,
}

/// An opened model.
pub struct Model {
    file: Arc<wootz_gguf::Model>,
    arch: wootz_arch::Model,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// The ChatML format, for models without a template.
    default_template: OnceLock<ChatTemplate>,
}

impl Model {
    /// Opens a GGUF file, or a set of shards by any of them.
    ///
    /// # Errors
    /// The file cannot be read or is not sound, its family or tokenizer is unknown, or tensors are missing.
    pub fn open(path: impl AsRef<Path>, options: &ModelOptions) -> Result<Model, Error> {
        Model::from_file(wootz_gguf::Model::open(path.as_ref())?, path.as_ref(), options)
    }

    /// Opens a model whose file is in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: Vec<u8>, options: &ModelOptions) -> Result<Model, Error> {
        Model::from_file(wootz_gguf::Model::from_bytes(bytes)?, Path::new("(memory)"), options)
    }

    fn from_file(file: wootz_gguf::Model, path: &Path, options: &ModelOptions) -> Result<Model, Error> {
        let meta = file.meta();
        let find = |name: &str| file.find(name).map(|t| (t.ty, t.rows() as u64, t.cols() as u64));
        // The tokenizer's tables take about as long as everything else: they are built beside it.
        let is_open = AtomicBool::new(false);
        let (arch, tokenizer) = std::thread::scope(|scope| {
            scope.spawn(|| read_ahead(&file, &is_open));
            let tokenizer = scope.spawn(|| Tokenizer::from_metadata(meta, options.pretokenizer.as_deref()));
            let arch = wootz_arch::Model::new(meta, find);
            let tokenizer = tokenizer.join();
            is_open.store(true, Ordering::Relaxed);
            (arch, tokenizer.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let arch = arch.map_err(|source| match source {
            ArchError::Metadata(e) => Error::File(e),
            source => Error::Model { path: path.to_owned(), source },
        })?;
        let tokenizer = tokenizer.map_err(|source| Error::Tokenizer { path: path.to_owned(), source })?;
        let source = match &options.chat_template {
            Some(source) => Some(source.as_str()),
            None => meta.opt_str("tokenizer.chat_template")?,
        };
        let template = match source {
            Some(source) => {
                // Files of RWKV have a template's name in its place.
                let named = TemplateKind::from_name(source).and_then(TemplateKind::builtin);
                let template = ChatTemplate::new(named.unwrap_or(source))?;
                Some(template.with_tokens(special_tokens(&tokenizer)))
            }
            None => None,
        };
        Ok(Model { file: Arc::new(file), arch, tokenizer, template, default_template: OnceLock::new() })
    }

    /// The file.
    pub fn file(&self) -> &wootz_gguf::Model {
        &self.file
    }

    /// Family, hyperparameters and weights.
    pub fn arch(&self) -> &wootz_arch::Model {
        &self.arch
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template, where the file or the options have one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Tokens of plain text in which no special token is recognised, with those that begin a text.
    pub fn tokenize(&self, text: &[u8]) -> Vec<u32> {
        self.tokenizer.encode(&[Segment::Text(text)], true)
    }

    /// Tokens of a conversation by the chat template; without one, by the ChatML format.
    ///
    /// # Errors
    /// The template refuses the messages.
    pub fn chat_tokens(&self, input: &ChatInput) -> Result<Vec<u32>, Error> {
        Ok(self.prompt_tokens(&self.chat_prompt(input)?))
    }

    /// A conversation as the chat template writes it; without one, in the ChatML format.
    ///
    /// # Errors
    /// The template refuses the messages.
    pub fn chat_prompt(&self, input: &ChatInput) -> Result<Prompt, Error> {
        Ok(self.chat_template()?.render(input)?)
    }

    /// The template that conversations are written with: the model's own or, without one, that of the ChatML format.
    ///
    /// # Errors
    /// None that a sound build could meet: the built-in template does not compile.
    pub fn chat_template(&self) -> Result<&ChatTemplate, Error> {
        if let Some(template) = self.template.as_ref().or_else(|| self.default_template.get()) {
            return Ok(template);
        }
        let template = ChatTemplate::builtin("chatml")?.with_tokens(special_tokens(&self.tokenizer));
        Ok(self.default_template.get_or_init(|| template))
    }

    /// Tokens of a rendered prompt: special tokens count in its markup only.
    pub fn prompt_tokens(&self, prompt: &Prompt) -> Vec<u32> {
        let segments: Vec<Segment<'_>> = prompt
            .segments
            .iter()
            .map(|s| match s {
                PromptSegment::Markup(text) => Segment::Markup(text),
                PromptSegment::Text(text) => Segment::Text(text.as_bytes()),
            })
            .collect();
        let mut tokens = self.tokenizer.encode(&segments, true);
        // Templates often write the first token themselves.
        let bos = self.tokenizer.bos();
        if tokens.len() > 1 && bos.is_some() && tokens[0] == tokens[1] && Some(tokens[0]) == bos {
            tokens.remove(0);
        }
        tokens
    }

    /// The tokenizer's model and, for byte-pair encoding, pre-tokenizer, as the file names them.
    pub fn tokenizer_name(&self) -> String {
        let name = |key: &str| self.file.meta().opt_str(key).ok().flatten();
        match (name("tokenizer.ggml.model"), name("tokenizer.ggml.pre")) {
            (Some(model), Some(pre)) => format!("{model} ({pre})"),
            (model, _) => model.unwrap_or("unknown").to_owned(),
        }
    }

    /// Memory that weights and the caches of a context take, with cached numbers of the default type.
    pub fn memory_at(&self, context: usize) -> MemoryUse {
        let options = ContextOptions::default();
        let caches = crate::fit::layout(self, context, 1, options.batch_on(None), &options).total_bytes();
        MemoryUse { weights: self.arch.weights().total_bytes(), caches, scratch: 0 }
    }

    pub(crate) fn sampler_vocab(&self) -> SamplerVocab<'_> {
        SamplerVocab(self)
    }

    /// Where a device reads the weights' bytes.
    pub fn weight_source(&self) -> Arc<dyn WeightSource> {
        let names = self.arch.weights().iter();
        let index = |name: &str| self.file.tensors().iter().position(|t| &*t.name == name);
        let tensors = names.map(|(_, info)| index(&info.name)).collect();
        Arc::new(FileWeights { file: self.file.clone(), tensors })
    }
}

/// Has the system read weights from the disk until the model is open: the layers, as what is loaded first.
fn read_ahead(file: &wootz_gguf::Model, is_open: &AtomicBool) {
    let mut piece = vec![0; 256 << 10];
    for tensor in file.tensors().iter().filter(|tensor| tensor.name.starts_with("blk.")) {
        for offset in (0..tensor.bytes).step_by(piece.len()) {
            let size = piece.len().min(tensor.bytes - offset);
            // Whoever needs the weights meets the error again, and reports it.
            if is_open.load(Ordering::Relaxed)
                || file.read_tensor_at(tensor, offset, &mut piece[..size]).is_err()
            {
                return;
            }
        }
    }
}

/// Token texts that templates name, and those that a user's words must not become.
fn special_tokens(tokenizer: &Tokenizer) -> SpecialTokens {
    let text = |id: Option<u32>| id.map(|id| String::from_utf8_lossy(tokenizer.token_text(id)).into_owned());
    let ids = tokenizer.special_ids();
    let control = (0..tokenizer.vocab_size() as u32)
        .filter(|id| tokenizer.is_control(*id))
        .filter_map(|id| std::str::from_utf8(tokenizer.token_text(id)).ok().map(str::to_owned))
        .collect();
    SpecialTokens {
        bos: text(ids.bos),
        eos: text(ids.eos),
        pad: text(ids.padding),
        unk: text(ids.unknown),
        control,
    }
}

/// What samplers ask of a vocabulary.
pub(crate) struct SamplerVocab<'a>(&'a Model);

impl Vocab for SamplerVocab<'_> {
    fn n_tokens(&self) -> usize {
        self.0.arch.hparams().vocab as usize
    }

    fn end_tokens(&self) -> &[u32] {
        self.0.tokenizer.eog()
    }

    fn piece(&self, token: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.tokenizer.piece(token, true));
    }

    fn tokenize(&self, text: &[u8]) -> Vec<u32> {
        self.0.tokenizer.encode(&[Segment::Text(text)], false)
    }
}

/// Weights by their place in a file.
struct FileWeights {
    file: Arc<wootz_gguf::Model>,
    /// Index of each weight's tensor.
    tensors: Vec<Option<usize>>,
}

impl FileWeights {
    fn tensor(&self, id: WeightId) -> Option<&wootz_gguf::TensorInfo> {
        let index = self.tensors.get(id.0 as usize).copied().flatten()?;
        self.file.tensors().get(index)
    }
}

impl WeightSource for FileWeights {
    fn read(&self, id: WeightId, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let tensor = self.tensor(id).ok_or_else(missing)?;
        self.file.read_tensor_at(tensor, offset as usize, buf).map_err(std::io::Error::other)
    }

    fn mapped(&self, id: WeightId) -> Option<&[u8]> {
        self.file.data(self.tensor(id)?).ok()
    }
}
