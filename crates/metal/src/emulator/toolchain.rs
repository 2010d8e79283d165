//! Compiles kernels for the host with clang.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive::{digest, unique};
use crate::error::MetalError;
use crate::library::{Function, Sources};
use crate::signature::{Access, Argument, Constant, Signature};

const STANDARD_LIBRARY: &str = include_str!("../../emulator/metal_stdlib");
const RUNTIME: &str = include_str!("../../emulator/runtime.cpp");
const RUNTIME_HEADER: &str = include_str!("../../emulator/runtime.h");

/// The environment variable that names the compiler.
const CLANG_VARIABLE: &str = "WOOTZ_CLANG";

/// Flags of everything that is compiled: nothing of the host's libraries, arithmetic as written.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-march=x86-64-v3",
    "-ffp-contract=off",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-stack-protector",
    "-nostdinc",
    "-Wno-unknown-attributes",
    "-Wno-psabi",
];

/// A compiler, and the folder that keeps what it made.
#[derive(Clone, Debug)]
pub struct Toolchain {
    clang: PathBuf,
    cache: PathBuf,
}

impl Toolchain {
    /// A compiler by its path, and a folder for compiled kernels.
    pub fn new(clang: PathBuf, cache: PathBuf) -> Toolchain {
        Toolchain { clang, cache }
    }

    /// The compiler that `WOOTZ_CLANG` names, the one that `scripts/check-platforms` fetched into `folder`, or one on
    /// the path; compiled kernels are kept in `folder`.
    ///
    /// # Errors
    /// There is none.
    pub fn find(folder: &Path) -> Result<Toolchain, MetalError> {
        let cache = folder.join("metal-emulator");
        if let Some(clang) = std::env::var_os(CLANG_VARIABLE) {
            return Ok(Toolchain::new(clang.into(), cache));
        }
        let fetched = folder.join("platforms/clang");
        if fetched.exists() {
            return Ok(Toolchain::new(fetched, cache));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        // `_Float16` vectors need version 16.
        let names: Vec<String> = (16..=24).rev().map(|v| format!("clang-{v}")).collect();
        let found = std::env::split_paths(&path)
            .flat_map(|p| names.iter().map(move |n| p.join(n)).collect::<Vec<_>>())
            .find(|p| p.exists());
        found.map(|clang| Toolchain::new(clang, cache)).ok_or_else(|| {
            MetalError::Unavailable(format!(
                "the emulator needs clang 16 or newer: set {CLANG_VARIABLE}, or run `scripts/check-platforms clang`"
            ))
        })
    }

    /// The shared library with a kernel, compiled unless it is there.
    ///
    /// # Errors
    /// The compiler refuses, or a file cannot be written.
    pub(super) fn library(
        &self,
        sources: &Sources,
        function: &Function,
        traced: bool,
    ) -> Result<PathBuf, MetalError> {
        let (signature, constants) = sources.signature(function)?;
        let text = unit(&sources.text(function.library.file)?, Some(&signature));
        let mut flags = defines(function, &constants);
        flags.push("-O2".into());
        if traced {
            flags.extend(traced_flags());
        }
        let name = digest(&(&text, &flags, RUNTIME, RUNTIME_HEADER, FLAGS));
        let target = self.cache.join(format!("{}-{name}.so", function.name));
        if target.exists() {
            return Ok(target);
        }
        let runtime = self.runtime(traced)?;
        let object = self.compile(&text, &flags, &name, &function.label())?;
        // Another process may make the same file: each writes its own and moves it into place.
        let partial = self.cache.join(format!("{name}-{}.so.partial", unique()));
        let mut link = Command::new(&self.clang);
        link.args(["-shared", "-nostdlib", "-o"]).arg(&partial).arg(&object).arg(&runtime);
        run(&mut link, &function.label())?;
        std::fs::remove_file(&object)
            .and_then(|()| std::fs::rename(&partial, &target))
            .map_err(|e| MetalError::Unavailable(format!("{}: {e}", target.display())))?;
        Ok(target)
    }

    /// Checks that a kernel file keeps to its address spaces.
    ///
    /// # Errors
    /// The compiler's words.
    pub fn check_address_spaces(&self, sources: &Sources, function: &Function) -> Result<(), MetalError> {
        let (_, constants) = sources.signature(function)?;
        let text = unit(&sources.text(function.library.file)?, None);
        let mut command = Command::new(&self.clang);
        command.args(FLAGS).args(defines(function, &constants));
        command.args(["-fsyntax-only", "-DEMULATOR_ADDRESS_SPACES", "-x", "c++"]);
        let name = format!("check-{}.cpp", digest(&(&text, unique())));
        let path = self.write(&name, &text)?;
        let result = run(command.arg(&path), &function.label());
        // A file left behind does no harm.
        let _ = std::fs::remove_file(path);
        result
    }

    /// The object file of the runtime.
    fn runtime(&self, traced: bool) -> Result<PathBuf, MetalError> {
        let text = format!("{RUNTIME_HEADER}\n{}", RUNTIME.replace("#include \"runtime.h\"", ""));
        let mut flags = vec!["-O2".to_owned()];
        if traced {
            flags.push("-DTRACED".into());
        }
        let name = digest(&(&text, &flags, FLAGS));
        let target = self.cache.join(format!("runtime-{name}.o"));
        if !target.exists() {
            let object = self.compile(&text, &flags, &name, "the emulator's runtime")?;
            std::fs::rename(object, &target)
                .map_err(|e| MetalError::Unavailable(format!("{}: {e}", target.display())))?;
        }
        Ok(target)
    }

    fn compile(&self, text: &str, flags: &[String], name: &str, what: &str) -> Result<PathBuf, MetalError> {
        let source = self.write(&format!("{name}-{}.cpp", unique()), text)?;
        let object = source.with_extension("o");
        let mut command = Command::new(&self.clang);
        command.args(FLAGS).args(flags).args(["-x", "c++", "-c", "-o"]).arg(&object).arg(&source);
        let result = run(&mut command, what);
        // A file left behind does no harm.
        let _ = std::fs::remove_file(source);
        result.map(|()| object)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, MetalError> {
        let path = self.cache.join(name);
        std::fs::create_dir_all(&self.cache)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|e| MetalError::Unavailable(format!("{}: {e}", path.display())))?;
        Ok(path)
    }
}

/// Flags with which every access of memory is told to the runtime. Vectors of more than 16 bytes would not be.
fn traced_flags() -> impl Iterator<Item = String> {
    ["-fsanitize=thread", "-fno-vectorize", "-fno-slp-vectorize"].into_iter().map(str::to_owned)
}

/// Macros of a library and constants of a function.
fn defines(function: &Function, constants: &[Constant]) -> Vec<String> {
    let mut list: Vec<String> =
        function.library.defines.iter().map(|(name, value)| format!("-D{name}={value}")).collect();
    for constant in constants {
        let value = function.constants.get(constant.name.as_str()).copied().unwrap_or(0);
        list.push(format!("-DEMULATOR_CONSTANT_{}={value}", constant.index));
    }
    list
}

/// The text to compile: what stands in for the standard library, the kernels, and a function that the runtime calls.
fn unit(kernels: &str, entry: Option<&Signature>) -> String {
    let kernels = kernels.replace("#include <metal_stdlib>", "");
    let mut text = format!("{STANDARD_LIBRARY}\n{kernels}\n");
    if let Some(signature) = entry {
        text.push_str(RUNTIME_HEADER);
        text.push_str(&entry_function(signature));
    }
    text
}

/// The function that calls a kernel with its buffers and the values of a thread.
fn entry_function(signature: &Signature) -> String {
    let arguments: Vec<String> = signature
        .arguments
        .iter()
        .map(|argument| match argument {
            Argument::Buffer(p) => match p.access {
                Access::Constant => format!("*(const {}*)buffers[{}]", p.ty, p.index),
                Access::Read => format!("(const {}*)buffers[{}]", p.ty, p.index),
                Access::Write => format!("({}*)buffers[{}]", p.ty, p.index),
            },
            Argument::Builtin(b) => {
                let scalar = ["thread_index", "simdgroup_index", "simdgroups_per", "threads_per_simdgroup"];
                let field = format!("t->{}", b.attribute);
                match (scalar.iter().any(|s| b.attribute.starts_with(s)), b.ty.as_str()) {
                    (true, _) => field,
                    (false, "uint2") => format!("uint2({field}[0], {field}[1])"),
                    (false, "uint3") => format!("uint3({field}[0], {field}[1], {field}[2])"),
                    (false, _) => format!("{field}[0]"),
                }
            }
        })
        .collect();
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\nextern \"C\" __attribute__((no_sanitize(\"thread\"))) void emulator_entry_{0}(const EmulatorThread* t, uchar* const* buffers) {{\n    {0}({1});\n}}\n",
        signature.name,
        arguments.join(", ")
    );
    text
}

fn run(command: &mut Command, what: &str) -> Result<(), MetalError> {
    let output = command
        .output()
        .map_err(|e| MetalError::Unavailable(format!("{}: {e}", command.get_program().display())))?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    let told: Vec<&str> = told.lines().take(40).collect();
    Err(MetalError::Kernel { kernel: what.to_owned(), reason: told.join("\n") })
}
