//! A folder of its own for each test, with a tiny model in it, and runs of the command in it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use wootz_gguf::{Model, Writer};
use wootz_quant::WeightType;
use wootz_testkit::tiny;

pub(crate) struct Place {
    dir: PathBuf,
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left of a failed removal lies in the build folder.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Bytes of a model of two layers with random weights and a vocabulary of bytes.
pub(crate) fn tiny_model() -> Vec<u8> {
    let llama = wootz_arch::find("llama").unwrap();
    tiny::build(llama, tiny::Types(WeightType::Q4_0, WeightType::Q8_0), 7)
}

/// The tiny model with some of its metadata replaced, and without the tensor named.
pub(crate) fn changed(settings: &[(&str, &str)], without: Option<&str>) -> Vec<u8> {
    let model = Model::from_bytes(tiny_model()).unwrap();
    let mut writer = Writer::new();
    for (key, value) in model.meta().iter() {
        writer.meta.set_value(key, value).unwrap();
    }
    for (key, value) in settings {
        writer.meta.set(key, *value).unwrap();
    }
    for tensor in model.tensors().iter().filter(|t| Some(&*t.name) != without) {
        writer.tensor_from(&model, tensor).unwrap();
    }
    writer.to_bytes().unwrap()
}

impl Place {
    pub(crate) fn new() -> Place {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let place = Place { dir: Path::new(env!("CARGO_TARGET_TMPDIR")).join(name) };
        place.write("tiny.gguf", &tiny_model());
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Names of everything in the folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.dir).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The command with these arguments, separated by spaces, in the folder; it cannot reach a network.
    pub(crate) fn command(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wootz"));
        command.args(args.split_whitespace()).current_dir(&self.dir);
        for name in ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "WOOTZ_CPU_ISA"] {
            command.env_remove(name);
        }
        command.env("WOOTZ_CACHE", self.path("cache")).env("WOOTZ_PYTHON", self.path("no-python"));
        command.env("HF_HUB_OFFLINE", "1");
        command
    }

    pub(crate) fn spawn(&self, args: &str) -> Child {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs the command with this standard input.
    pub(crate) fn run(&self, args: &str, input: &[u8]) -> Output {
        let mut child = self.spawn(args);
        // A command that fails early does not read.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    /// Standard output of a run that succeeds.
    pub(crate) fn ok(&self, args: &str) -> String {
        self.ok_with(args, b"")
    }

    pub(crate) fn ok_with(&self, args: &str, input: &[u8]) -> String {
        let output = self.run(args, input);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "wootz {args}: {errors}");
        assert!(!errors.contains("panicked"), "wootz {args}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one JSON value that a run prints.
    pub(crate) fn json(&self, args: &str) -> Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("wootz {args}: {e}: {text}"))
    }

    /// The error line of a run that fails, which prints nothing else and leaves no new file.
    pub(crate) fn fails(&self, args: &str) -> String {
        self.fails_with(args, b"")
    }

    pub(crate) fn fails_with(&self, args: &str, input: &[u8]) -> String {
        let before = self.names();
        let output = self.run(args, input);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "wootz {args}: {:?}, {errors}", output.status);
        assert_eq!(errors.trim_end().lines().count(), 1, "wootz {args}: {errors}");
        let line = errors.trim_end().strip_prefix("error: ");
        let line = line.unwrap_or_else(|| panic!("wootz {args}: {errors}")).to_owned();
        assert!(!line.contains("panicked"), "wootz {args}: {line}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "wootz {args}");
        assert_eq!(self.names(), before, "wootz {args} left files");
        line
    }
}
