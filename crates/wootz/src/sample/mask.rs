//! The tokens that a grammar allows next.

use std::borrow::Cow;

/// A set of allowed tokens: bit `t % 32` of word `t / 32` is token `t`.
///
/// The layout is that of common grammar engines, so their words can be borrowed as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitMask<'a> {
    words: Cow<'a, [u32]>,
    len: usize,
}

impl<'a> BitMask<'a> {
    /// A mask of `len` tokens, none of them allowed.
    pub fn none(len: usize) -> BitMask<'static> {
        BitMask { words: Cow::Owned(vec![0; len.div_ceil(32)]), len }
    }

    /// A mask of `len` tokens over words that the caller holds; missing words allow nothing.
    pub fn from_words(words: &'a [u32], len: usize) -> Self {
        Self { words: Cow::Borrowed(words), len }
    }

    /// A mask of `len` tokens that allows the given ones; tokens at or above `len` are left out.
    pub fn from_tokens(tokens: impl IntoIterator<Item = u32>, len: usize) -> BitMask<'static> {
        let mut mask = BitMask::none(len);
        for token in tokens {
            mask.allow(token);
        }
        mask
    }

    /// Allows one more token; does nothing for a token at or above the length.
    pub fn allow(&mut self, token: u32) {
        let index = token as usize;
        if index < self.len
            && let Some(word) = self.words.to_mut().get_mut(index / 32)
        {
            *word |= 1 << (index % 32);
        }
    }

    /// Tells whether the token is allowed.
    pub fn allows(&self, token: u32) -> bool {
        let index = token as usize;
        index < self.len && self.words.get(index / 32).is_some_and(|word| word >> (index % 32) & 1 == 1)
    }

    /// The mask's words, with nothing set past its length.
    pub(crate) fn words(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().take(self.len.div_ceil(32)).enumerate().map(|(i, &word)| {
            let used = self.len - i * 32;
            if used < 32 { word & ((1 << used) - 1) } else { word }
        })
    }

    /// Number of tokens that the mask speaks about.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Tells whether the mask speaks about no token at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of allowed tokens.
    pub fn count(&self) -> usize {
        self.words().map(|word| word.count_ones() as usize).sum()
    }

    /// The allowed tokens, lowest first.
    pub fn allowed(&self) -> impl Iterator<Item = u32> + '_ {
        self.words().enumerate().flat_map(|(i, word)| {
            let bits = (0..32).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| i as u32 * 32 + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_exactly_the_given_tokens() {
        let tokens = [0, 31, 32, 63, 64, 69];
        let mask = BitMask::from_tokens(tokens.into_iter().chain([70, 900]), 70);
        assert_eq!(mask.allowed().collect::<Vec<_>>(), tokens);
        assert_eq!((mask.count(), mask.len()), (6, 70));
        for token in 0..100 {
            assert_eq!(mask.allows(token), tokens.contains(&token), "token {token}");
        }
    }

    #[test]
    fn bits_past_the_length_and_missing_words_allow_nothing() {
        let mask = BitMask::from_words(&[u32::MAX], 5);
        assert_eq!(mask.allowed().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let short = BitMask::from_words(&[1], 64);
        assert!(short.allows(0) && !short.allows(40));
        assert!(BitMask::none(0).is_empty());
    }
}
