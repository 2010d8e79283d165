//! The kernels' sources, and how one of their variants is named.

use std::collections::BTreeMap;

use crate::error::MetalError;
use crate::signature::{self, Constant, Signature};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Every kernel file and header but those of blocks, which `wootz_quant` has for all backends.
const FILES: &[(&str, &str)] = files![
    "activation.h",
    "args.h",
    "attention.metal",
    "attention_tiles.metal",
    "attention_wide.metal",
    "cache.h",
    "common.h",
    "dots.h",
    "elementwise.metal",
    "embed.metal",
    "float64.h",
    "heads.metal",
    "matmul.metal",
    "matvec.metal",
    "norm.metal",
    "recurrent.metal",
    "route.metal",
    "sampling.metal",
    "softmax.h",
    "weights.h",
];

/// A family of kernels: a file, compiled with some macros defined.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Library {
    /// File name without `.metal`.
    pub file: &'static str,
    /// Macros and their values.
    pub defines: Vec<(&'static str, String)>,
}

impl Library {
    /// A file without macros.
    pub fn plain(file: &'static str) -> Library {
        Library { file, defines: Vec::new() }
    }

    /// The same with one more macro.
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Library {
        self.defines.push((name, value.to_string()));
        self
    }
}

/// A kernel of a library with its function constants: what a pipeline is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Function {
    /// Where it is.
    pub library: Library,
    /// Its name.
    pub name: &'static str,
    /// Function constants by name; booleans are 0 and 1, those left out are 0.
    pub constants: BTreeMap<&'static str, u32>,
}

impl Function {
    /// A kernel without function constants set.
    pub fn new(library: Library, name: &'static str) -> Function {
        Function { library, name, constants: BTreeMap::new() }
    }

    /// The same with a constant set.
    pub fn set(mut self, name: &'static str, value: impl Into<u32>) -> Function {
        self.constants.insert(name, value.into());
        self
    }

    /// A name for errors and captures, such as `matvec(WEIGHT=Q4_K, BATCH=1)`.
    pub fn label(&self) -> String {
        let defines = self.library.defines.iter().map(|(n, v)| format!("{n}={v}"));
        let constants = self.constants.iter().filter(|(_, v)| **v != 0).map(|(n, v)| format!("{n}={v}"));
        let all: Vec<String> = defines.chain(constants).collect();
        if all.is_empty() { self.name.to_owned() } else { format!("{}({})", self.name, all.join(", ")) }
    }
}

/// The sources that libraries are compiled from.
#[derive(Clone, Debug, Hash)]
pub struct Sources {
    files: BTreeMap<String, String>,
}

impl Default for Sources {
    /// The kernels of this build.
    fn default() -> Sources {
        let files = FILES.iter().chain(&wootz_quant::KERNEL_HEADERS);
        Sources { files: files.map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect() }
    }
}

impl Sources {
    /// The same sources with one place of a file changed: for tests that a mistake is found.
    ///
    /// # Errors
    /// The file does not have `old` exactly once.
    pub fn altered(mut self, file: &str, old: &str, new: &str) -> Result<Sources, MetalError> {
        let text = self.files.get_mut(file).filter(|t| t.matches(old).count() == 1);
        let text = text.ok_or_else(|| MetalError::Kernel {
            kernel: file.to_owned(),
            reason: format!("it does not hold {old:?} exactly once"),
        })?;
        *text = text.replace(old, new);
        Ok(self)
    }

    /// Names of the kernel files, without `.metal`.
    pub fn families(&self) -> impl Iterator<Item = &str> {
        self.files.keys().filter_map(|name| name.strip_suffix(".metal"))
    }

    /// The text of a kernel file with its headers in place; `#include <metal_stdlib>` stays.
    ///
    /// # Errors
    /// A file is missing.
    pub fn text(&self, file: &str) -> Result<String, MetalError> {
        let mut out = String::new();
        self.include(&format!("{file}.metal"), &mut Vec::new(), &mut out)?;
        Ok(out)
    }

    fn include(&self, name: &str, done: &mut Vec<String>, out: &mut String) -> Result<(), MetalError> {
        if done.iter().any(|d| d == name) {
            return Ok(());
        }
        done.push(name.to_owned());
        let missing =
            || MetalError::Kernel { kernel: name.to_owned(), reason: "there is no such file".into() };
        let text = self.files.get(name).ok_or_else(missing)?;
        out.push_str(&format!("#line 1 \"{name}\"\n"));
        for (number, line) in text.lines().enumerate() {
            let header = line.strip_prefix("#include \"").and_then(|l| l.strip_suffix('"'));
            match header {
                Some(header) => {
                    self.include(header, done, out)?;
                    out.push_str(&format!("#line {} \"{name}\"\n", number + 2));
                }
                // Every file is included once.
                None if line == "#pragma once" => out.push('\n'),
                None => {
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
        Ok(())
    }

    /// The signature of a kernel and the function constants of its file.
    ///
    /// # Errors
    /// There is no such kernel, or it is not written in the dialect.
    pub fn signature(&self, function: &Function) -> Result<(Signature, Vec<Constant>), MetalError> {
        let bad = |reason: String| MetalError::Kernel { kernel: function.label(), reason };
        let text = self.text(function.library.file)?;
        let constants = signature::constants(&text)?;
        if let Some(name) = function.constants.keys().find(|n| constants.iter().all(|c| c.name != **n)) {
            return Err(bad(format!("there is no function constant {name}")));
        }
        let found = signature::kernels(&text)?.into_iter().find(|k| k.name == function.name);
        Ok((found.ok_or_else(|| bad("its file has no such kernel".into()))?, constants))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_written_in_the_dialect() {
        let sources = Sources::default();
        let mut kernels = 0;
        for family in sources.families() {
            let text = sources.text(family).unwrap();
            let found = signature::kernels(&text).unwrap();
            assert!(!found.is_empty(), "{family}");
            for kernel in found {
                let mut indices: Vec<u32> = kernel.buffers().map(|p| p.index).collect();
                indices.sort_unstable();
                indices.dedup();
                assert_eq!(
                    indices.len(),
                    kernel.buffers().count(),
                    "{}: an index is bound twice",
                    kernel.name
                );
                kernels += 1;
            }
            let mut numbers: Vec<u32> =
                signature::constants(&text).unwrap().iter().map(|c| c.index).collect();
            let all = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), all, "{family}: two function constants have one index");
        }
        assert!(kernels >= 16);
    }

    #[test]
    fn the_header_of_arguments_is_what_the_structs_print() {
        assert_eq!(Sources::default().files["args.h"], crate::args::header());
    }
}
