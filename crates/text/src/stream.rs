//! Text from token pieces: bytes in, whole characters out.

/// Turns a stream of bytes into text.
///
/// The text is what `String::from_utf8_lossy` makes of all bytes together, however they were
/// cut; only an incomplete character at the end is held back.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    tail: Vec<u8>,
}

impl Utf8Stream {
    /// A stream that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and gives the text that is certain.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let joined;
        let mut rest = if self.tail.is_empty() {
            bytes
        } else {
            let mut all = std::mem::take(&mut self.tail);
            all.extend_from_slice(bytes);
            joined = all;
            &joined
        };
        let mut text = String::with_capacity(rest.len());
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => error,
            };
            let (valid, after) = rest.split_at(error.valid_up_to());
            text.push_str(std::str::from_utf8(valid).unwrap_or_default());
            match error.error_len() {
                Some(bad) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
                None => {
                    self.tail = after.to_vec();
                    return text;
                }
            }
        }
    }

    /// Ends the stream; an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        match std::mem::take(&mut self.tail).is_empty() {
            true => String::new(),
            false => char::REPLACEMENT_CHARACTER.into(),
        }
    }

    /// Bytes held back at present, 3 at most.
    pub fn held(&self) -> usize {
        self.tail.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    fn random_bytes(rng: &mut Rng) -> Vec<u8> {
        let bits: [&[u8]; 14] = [
            b"a",
            "é".as_bytes(),
            "€".as_bytes(),
            "😀".as_bytes(),
            b"\xe2\x82",
            b"\xf0\x9f\x98",
            b"\xf0\x9f",
            b"\xff",
            b"\x80",
            b"\xc0\xaf",
            b"\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            b"\xe0\x80",
            b"\xc3",
        ];
        (0..rng.below(9)).flat_map(|_| bits[rng.below(14) as usize].to_vec()).collect()
    }

    #[test]
    fn equals_the_lossy_text_of_the_whole() {
        let mut rng = Rng::new(5);
        for _ in 0..20_000 {
            let bytes = random_bytes(&mut rng);
            let mut stream = Utf8Stream::new();
            let mut text = String::new();
            let mut at = 0;
            while at < bytes.len() {
                let end = (at + rng.below(4) as usize).min(bytes.len());
                text.push_str(&stream.push(&bytes[at..end]));
                at = end;
                // What is shown together with what is held back accounts for every byte.
                let tail = bytes[at - stream.held()..at].to_vec();
                let shown = String::from_utf8_lossy(&bytes[..at - stream.held()]);
                assert_eq!(text, shown);
                assert!(tail.is_empty() || std::str::from_utf8(&tail).unwrap_err().error_len().is_none());
            }
            text.push_str(&stream.finish());
            assert_eq!(text, String::from_utf8_lossy(&bytes), "{bytes:x?}");
        }
    }

    #[test]
    fn shows_each_character_with_its_last_byte() {
        let mut stream = Utf8Stream::new();
        let shown: Vec<String> = "a😀é".bytes().map(|b| stream.push(&[b])).collect();
        assert_eq!(shown, ["a", "", "", "", "😀", "", "é"]);
        assert_eq!(stream.push(b"\xe2\x82"), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }
}
