//! Names close to a mistyped one.

/// The most names that are suggested.
const MOST: usize = 3;

/// The candidates closest to `typed`, best first, ignoring case.
///
/// Close means: at most a third of the letters differ, or one begins with the other.
pub(crate) fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let typed = typed.to_lowercase();
    let limit = (typed.chars().count() / 3).max(1);
    let mut scored: Vec<(usize, &str)> = candidates
        .into_iter()
        .filter_map(|name| {
            let lower = name.to_lowercase();
            let distance = edits(&typed, &lower);
            let related = typed.len() >= 3 && lower.starts_with(&typed)
                || lower.len() >= 3 && typed.starts_with(&lower);
            (distance <= limit || related).then_some((distance, name))
        })
        .collect();
    scored.sort_unstable();
    scored.into_iter().take(MOST).map(|(_, name)| name.to_owned()).collect()
}

/// The Levenshtein distance: the fewest letters to insert, delete or replace.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_of_known_pairs() {
        for (a, b, expected) in
            [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("ä", "a", 1)]
        {
            assert_eq!(edits(a, b), expected, "{a} {b}");
            assert_eq!(edits(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn suggestions_are_close_and_sorted() {
        let names = ["smollm2", "smollm2-360m", "qwen3-4b", "qwen3-8b", "mistral-7b"];
        assert_eq!(nearest("smolm2", names), ["smollm2"]);
        assert_eq!(nearest("SmolLM", names), ["smollm2", "smollm2-360m"]);
        assert_eq!(nearest("qwen3-6b", names), ["qwen3-4b", "qwen3-8b"]);
        assert!(nearest("banana", names).is_empty());
    }
}
