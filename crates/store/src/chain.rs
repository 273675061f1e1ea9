//! The chained checksum of the journal: the value of each entry depends on all entries before it.
//!
//! It is stored in `journal.chain`, so the value at any position is one lookup. It can be recomputed from the checksums
//! of the entries. Entries of older versions have none; the chain starts after them.

/// The end of a journal: the newest position and its chained checksum. `chain` is 0 if the entry has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalHead {
    pub(crate) seq: i64,
    pub(crate) chain: i64,
}

impl JournalHead {
    /// The head after one more entry with this checksum.
    pub(crate) fn next(self, checksum: i64) -> Self {
        Self { seq: self.seq + 1, chain: next(self.chain, checksum) }
    }
}

/// The chained checksum of an entry, computed from that of the previous entry and the entry's own checksum.
///
/// The mixing function is the finaliser of SplitMix64. It detects accidental damage, not forgery.
pub(crate) fn next(before: i64, checksum: i64) -> i64 {
    let mut mixed = (before as u64).rotate_left(23).wrapping_add(0x9e37_79b9_7f4a_7c15) ^ checksum as u64;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) as i64
}

/// Recomputes the chain entry by entry.
#[derive(Debug, Default)]
pub(crate) struct ChainCheck {
    before: i64,
    has_begun: bool,
}

impl ChainCheck {
    /// Checks the next entry and returns the mismatch, if any.
    pub(crate) fn check_entry(&mut self, seq: i64, checksum: i64, chain: Option<i64>) -> Option<String> {
        let Some(chain) = chain else {
            self.before = 0;
            return self.has_begun.then(|| format!("entry {seq} of the journal has no chained checksum"));
        };
        self.has_begun = true;
        let expected = next(self.before, checksum);
        self.before = chain;
        (chain != expected)
            .then(|| format!("entry {seq} of the journal does not continue the chain before it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_depends_on_every_entry_and_on_their_order() {
        let chain = |checksums: &[i64]| checksums.iter().fold(0, |before, it| next(before, *it));
        let whole = chain(&[1, 2, 3, 4]);
        for other in [&[1, 2, 3][..], &[2, 1, 3, 4], &[1, 2, 3, 5], &[7, 2, 3, 4], &[1, 2, 3, 4, 4]] {
            assert_ne!(chain(other), whole, "{other:?}");
        }
    }
}
