//! Stop strings: text is let through as soon as it can no longer become part of one.

mod automaton;

pub(crate) use automaton::{Automaton, Cursor};

/// Cuts streamed text at markers.
///
/// Text is held back only while it is the beginning of a marker. The marker that is complete
/// first counts; of several that end at the same byte the longest.
#[derive(Clone, Debug)]
pub(crate) struct Scanner {
    automaton: Automaton,
    cursor: Cursor,
    held: String,
    found: Option<usize>,
}

/// What a scanner meets next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    Marker(usize),
}

impl Scanner {
    pub(crate) fn new<S: AsRef<str>>(markers: impl IntoIterator<Item = S>) -> Self {
        let bytes = markers.into_iter().map(|marker| marker.as_ref().as_bytes().to_vec());
        Self { automaton: Automaton::new(bytes), cursor: Cursor::default(), held: String::new(), found: None }
    }

    /// Reads on in `input` up to the next piece; `None` when all is read.
    pub(crate) fn next(&mut self, input: &mut &str) -> Option<Piece> {
        if let Some(marker) = self.found.take() {
            return Some(Piece::Marker(marker));
        }
        let old = self.held.len();
        for (i, &byte) in input.as_bytes().iter().enumerate() {
            self.cursor = self.automaton.step(self.cursor, byte);
            let Some(hit) = self.automaton.hit(self.cursor) else { continue };
            let (read, rest) = input.split_at(i + 1);
            *input = rest;
            self.cursor = Cursor::default();
            let mut text = std::mem::take(&mut self.held);
            text.push_str(read);
            text.truncate(old + i + 1 - hit.len);
            if text.is_empty() {
                return Some(Piece::Marker(hit.pattern));
            }
            self.found = Some(hit.pattern);
            return Some(Piece::Text(text));
        }
        let mut text = std::mem::take(&mut self.held);
        text.push_str(std::mem::take(input));
        // Markers begin at character borders, so the open part does too.
        self.held = text.split_off(text.len() - self.automaton.open(self.cursor));
        (!text.is_empty()).then_some(Piece::Text(text))
    }

    /// Forgets where it was and gives what was held back.
    pub(crate) fn take(&mut self) -> String {
        self.cursor = Cursor::default();
        std::mem::take(&mut self.held)
    }
}

/// Watches streamed text for stop strings.
///
/// Text is held back only while it is the beginning of a stop string. The first stop string that
/// is complete ends the text; of several that end at the same byte the longest counts. How the
/// text was cut into pieces never changes the outcome.
///
/// ```
/// let mut stops = wootz_text::stop::StopMatcher::new(["\nUser:"]);
/// assert_eq!(stops.push("Hello\nUs").text, "Hello");
/// let step = stops.push("er: next");
/// assert_eq!((step.text.as_str(), step.stop), ("", Some(0)));
/// ```
#[derive(Clone, Debug)]
pub struct StopMatcher {
    scanner: Scanner,
    stopped: Option<usize>,
}

/// What a piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that can be shown now.
    pub text: String,
    /// Index of the stop string that was found; nothing follows it.
    pub stop: Option<usize>,
}

impl StopMatcher {
    /// A matcher for some stop strings; empty ones never match.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Self {
        Self { scanner: Scanner::new(stops), stopped: None }
    }

    /// Takes the next piece of text; after a stop string everything is dropped.
    pub fn push(&mut self, text: &str) -> StopStep {
        let mut shown = String::new();
        let mut rest = text;
        while self.stopped.is_none() {
            match self.scanner.next(&mut rest) {
                Some(Piece::Text(text)) => shown.push_str(&text),
                Some(Piece::Marker(stop)) => self.stopped = Some(stop),
                None => break,
            }
        }
        StopStep { text: shown, stop: self.stopped }
    }

    /// Ends the stream and gives what was held back.
    pub fn finish(&mut self) -> String {
        self.scanner.take()
    }

    /// Bytes held back at present.
    pub fn held(&self) -> usize {
        self.scanner.held.len()
    }

    /// Index of the stop string that ended the text.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rng, pieces};

    /// The plain meaning: the match that ends first, of those the longest.
    fn oracle(text: &str, stops: &[&str]) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let best = (0..stops.len())
                .filter(|&i| !stops[i].is_empty() && text.as_bytes()[..end].ends_with(stops[i].as_bytes()))
                .max_by_key(|&i| (stops[i].len(), usize::MAX - i));
            if let Some(i) = best {
                return (text[..end - stops[i].len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn pieces_do_not_change_the_outcome() {
        let mut rng = Rng::new(11);
        let alphabet = ["a", "b", "c", "é", "è", "\n"];
        let mut found = 0;
        for _ in 0..4_000 {
            let mut word = |max: u64| -> String {
                (0..rng.below(max)).map(|_| alphabet[rng.below(6) as usize]).collect()
            };
            let stops: Vec<String> = (0..3).map(|_| word(6)).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let text = word(40);
            let mut matcher = StopMatcher::new(&stops);
            let mut got = String::new();
            let mut read = 0;
            for piece in pieces(&text, &mut rng) {
                let step = matcher.push(piece);
                got.push_str(&step.text);
                read += piece.len();
                if step.stop.is_none() {
                    let seen = &text[..read];
                    let open = (0..=seen.len())
                        .filter(|&k| seen.is_char_boundary(seen.len() - k))
                        .filter(|&k| {
                            let tail = &seen[seen.len() - k..];
                            stops.iter().any(|s| s.starts_with(tail) && s.len() > k)
                        })
                        .max();
                    assert_eq!(matcher.held(), open.unwrap_or(0), "{seen:?} {stops:?}");
                }
            }
            got.push_str(&matcher.finish());
            let want = oracle(&text, &stops);
            found += usize::from(want.1.is_some());
            assert_eq!((got, matcher.stopped()), want, "{text:?} {stops:?}");
        }
        assert!(found > 1_000, "the test must meet matches: {found}");
    }

    #[test]
    fn a_stop_inside_a_longer_one_wins_when_it_ends_first() {
        let mut matcher = StopMatcher::new(["<|end|>", "end"]);
        assert_eq!(matcher.push("x<|e"), StopStep { text: "x".into(), stop: None });
        assert_eq!(matcher.push("nd|>y"), StopStep { text: "<|".into(), stop: Some(1) });
        assert_eq!(matcher.push("more"), StopStep { text: String::new(), stop: Some(1) });
        assert_eq!(matcher.finish(), "");
    }
}
