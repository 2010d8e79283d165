//! Models made of one file or of several, and the choice among those of one place.

use std::collections::BTreeMap;

/// A model: one GGUF file, or all files of a split one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSet {
    /// The files that are there, in order; the first one opens the set.
    pub(crate) files: Vec<String>,
    /// Files that should be there too.
    pub(crate) missing: Vec<String>,
}

impl FileSet {
    /// The file that stands for the model.
    pub(crate) fn first(&self) -> &str {
        &self.files[0]
    }
}

/// `STEM-00002-of-00005.gguf`: stem, number, count.
///
/// One million files or more are nobody's model, so they are plain names.
fn shard_of(name: &str) -> Option<(&str, u32, u32)> {
    let rest = name.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let read = |digits: &str| {
        let right = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
        if right { digits.parse::<u32>().ok() } else { None }
    };
    let (number, count) = (read(number)?, read(count)?);
    (1 <= number && number <= count).then_some((stem, number, count))
}

/// Groups the GGUF files among `names` into models, sorted by their first file.
///
/// Files that accompany a model (image projectors, importance matrices) are no models.
pub(crate) fn group(names: impl IntoIterator<Item = String>) -> Vec<FileSet> {
    let mut single = Vec::new();
    let mut split: BTreeMap<(String, u32), BTreeMap<u32, String>> = BTreeMap::new();
    for name in names {
        if !is_gguf(&name) || is_companion(&name) {
            continue;
        }
        match shard_of(&name) {
            Some((stem, number, count)) => {
                split.entry((stem.to_owned(), count)).or_default().insert(number, name);
            }
            None => single.push(FileSet { files: vec![name], missing: Vec::new() }),
        }
    }
    let split = split.into_iter().map(|((stem, count), files)| FileSet {
        missing: (1..=count)
            .filter(|number| !files.contains_key(number))
            .map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf"))
            .collect(),
        files: files.into_values().collect(),
    });
    let mut all: Vec<FileSet> = single.into_iter().chain(split).collect();
    all.sort_by(|a, b| a.files.cmp(&b.files));
    all
}

pub(crate) fn is_gguf(name: &str) -> bool {
    name.len() > 5 && name[name.len().saturating_sub(5)..].eq_ignore_ascii_case(".gguf")
}

fn is_companion(name: &str) -> bool {
    let file = file_name(name).to_lowercase();
    file.contains("mmproj") || file.contains("imatrix")
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, file)| file)
}

/// Why no model could be chosen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unchosen {
    /// There is no model at all.
    Empty,
    /// None has the name or weight type.
    NoMatch,
    /// More than one fits: their first files.
    Several(Vec<String>),
}

/// The weight types that are tried in turn when a reference names none.
pub(crate) const PREFERRED: [&str; 3] = ["Q4_K_M", "Q4_0", "Q8_0"];

/// Chooses the model that `selector` names: by file, or by weight type.
///
/// A file is named by its path, or by its name alone, with or without `.gguf`; any
/// file of a split model names the model. Case does not matter. Without a selector
/// the weight types of [`PREFERRED`] are tried, then the first model is taken.
pub(crate) fn choose<'a>(sets: &'a [FileSet], selector: Option<&str>) -> Result<&'a FileSet, Unchosen> {
    let Some(first) = sets.first() else { return Err(Unchosen::Empty) };
    let Some(selector) = selector else {
        for quant in PREFERRED {
            match only(sets.iter().filter(|set| has_quant(set.first(), quant))) {
                Err(Unchosen::NoMatch) => continue,
                chosen => return chosen,
            }
        }
        return Ok(first);
    };
    let wanted = selector.to_lowercase();
    let wanted = wanted.strip_suffix(".gguf").unwrap_or(&wanted);
    let names = |set: &FileSet, shorten: fn(&str) -> &str| {
        set.files.iter().any(|file| {
            let file = shorten(file).to_lowercase();
            let file = file.strip_suffix(".gguf").unwrap_or(&file);
            file == wanted || shard_of(&format!("{file}.gguf")).is_some_and(|(stem, ..)| stem == wanted)
        })
    };
    let by_path = only(sets.iter().filter(|set| names(set, |path| path)));
    let by_name = || only(sets.iter().filter(|set| names(set, file_name)));
    let by_quant = || only(sets.iter().filter(|set| has_quant(set.first(), wanted)));
    by_path.or_else(|_| by_name()).or_else(|why| match why {
        Unchosen::NoMatch => by_quant(),
        why => Err(why),
    })
}

fn only<'a>(mut found: impl Iterator<Item = &'a FileSet>) -> Result<&'a FileSet, Unchosen> {
    let Some(one) = found.next() else { return Err(Unchosen::NoMatch) };
    let more: Vec<String> = found.map(|set| set.first().to_owned()).collect();
    if more.is_empty() {
        return Ok(one);
    }
    Err(Unchosen::Several(std::iter::once(one.first().to_owned()).chain(more).collect()))
}

/// Whether a path has the weight type as a word of its own.
///
/// `Q4_K` is not in `Q4_K_M`, and `F16` is not in `BF16`; `_` before the type is
/// allowed, since some names use it between words.
fn has_quant(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_lowercase(), quant.to_lowercase());
    path.match_indices(&quant).any(|(at, _)| {
        let before = path[..at].chars().next_back();
        let after = path[at + quant.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(names: &[&str]) -> Vec<FileSet> {
        group(names.iter().map(|&name| name.to_owned()))
    }

    #[test]
    fn shards_are_read_by_their_names() {
        assert_eq!(shard_of("a-b-00002-of-00003.gguf"), Some(("a-b", 2, 3)));
        for name in [
            "a.gguf",
            "a-2-of-3.gguf",
            "a-00004-of-00003.gguf",
            "a-00000-of-00003.gguf",
            "a-00001-of-00003.bin",
        ] {
            assert_eq!(shard_of(name), None, "{name}");
        }
    }

    #[test]
    fn files_are_grouped_into_models() {
        let found = sets(&[
            "z.gguf",
            "m-00002-of-00003.gguf",
            "m-00001-of-00003.gguf",
            "mmproj-model-f16.gguf",
            "x.imatrix.gguf",
            "README.md",
            "ä.gguf",
            "é",
            ".gguf",
        ]);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].files, ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf"]);
        assert_eq!(found[0].missing, ["m-00003-of-00003.gguf"]);
        assert_eq!(found[1].files, ["z.gguf"]);
        assert_eq!(found[2].files, ["ä.gguf"]);
    }

    #[test]
    fn weight_types_match_as_words() {
        for (path, quant, expected) in [
            ("Llama-Q4_K_M.gguf", "q4_k_m", true),
            ("model.Q4_K_M.gguf", "Q4_K_M", true),
            ("model_q8_0.gguf", "Q8_0", true),
            ("Q4_K_M/m-00001-of-00002.gguf", "Q4_K_M", true),
            ("m-Q4_K_M-00001-of-00002.gguf", "Q4_K_M", true),
            ("m-UD-Q4_K_XL.gguf", "Q4_K_XL", true),
            ("m-Q4_K_M.gguf", "Q4_K", false),
            ("m-BF16.gguf", "F16", false),
            ("m-IQ4_XS.gguf", "Q4_XS", false),
            ("m-Q4_0_4_4.gguf", "Q4_0", false),
        ] {
            assert_eq!(has_quant(path, quant), expected, "{path} {quant}");
        }
    }

    #[test]
    fn a_selector_chooses_by_path_name_or_weight_type() {
        let all = sets(&[
            "M-Q4_K_M.gguf",
            "M-Q8_0.gguf",
            "big/M-F16-00001-of-00002.gguf",
            "big/M-F16-00002-of-00002.gguf",
            "M-IQ2_M.gguf",
        ]);
        let chosen = |selector| choose(&all, selector).map(|set| set.first().to_owned());
        for (selector, first) in [
            (None, "M-Q4_K_M.gguf"),
            (Some("q8_0"), "M-Q8_0.gguf"),
            (Some("m-q8_0.GGUF"), "M-Q8_0.gguf"),
            (Some("M-Q8_0"), "M-Q8_0.gguf"),
            (Some("F16"), "big/M-F16-00001-of-00002.gguf"),
            (Some("M-F16"), "big/M-F16-00001-of-00002.gguf"),
            (Some("big/M-F16-00002-of-00002.gguf"), "big/M-F16-00001-of-00002.gguf"),
            (Some("M-F16-00002-of-00002.gguf"), "big/M-F16-00001-of-00002.gguf"),
        ] {
            assert_eq!(chosen(selector).as_deref(), Ok(first), "{selector:?}");
        }
        assert_eq!(chosen(Some("Q5_0")), Err(Unchosen::NoMatch));
        assert_eq!(choose(&[], None), Err(Unchosen::Empty));
    }

    #[test]
    fn without_a_selector_the_preferred_types_are_tried_in_turn() {
        let first = |names: &[&str]| choose(&sets(names), None).map(|set| set.first().to_owned());
        assert_eq!(first(&["a-F16.gguf", "a-Q4_0.gguf", "a-Q8_0.gguf"]).as_deref(), Ok("a-Q4_0.gguf"));
        assert_eq!(first(&["a-F16.gguf", "a-Q8_0.gguf"]).as_deref(), Ok("a-Q8_0.gguf"));
        assert_eq!(first(&["b-F16.gguf", "a-F32.gguf"]).as_deref(), Ok("a-F32.gguf"));
        assert_eq!(
            first(&["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "c-Q4_0.gguf"]),
            Err(Unchosen::Several(vec!["a-Q4_K_M.gguf".into(), "b-Q4_K_M.gguf".into()]))
        );
    }
}
