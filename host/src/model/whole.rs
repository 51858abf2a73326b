//! Tensors that are one bucket each: where their statistics lie, between the kernels that take them, fold them and use
//! them.

use gradwire_kernels::params::{item, whole};

use super::item::Item;
use crate::plan::Span;
use crate::wire::CodecId;

/// Words of a folded statistic.
const STATISTIC_WORDS: u32 = 2;

/// The tensors that have elements, as the table names them after its items.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Whole {
    table_word: u32,
    tensors: u32,
    words: u32,
}

impl Whole {
    /// Adds the tensors of these items, which lie one tensor after another, to the table, and tells the items where
    /// their tensor's statistic will be.
    pub(crate) fn new(codec: CodecId, items: &[Item], table: &mut Vec<u32>) -> Self {
        let partial_words = codec.partial_words();
        let table_word = table.len() as u32;
        let mut statistic = whole::PARTIALS + items.len() as u32 * partial_words;
        let mut first = 0;
        for group in items.chunk_by(|a, b| a.tensor == b.tensor) {
            let count = group.len() as u32;
            for index in first..first + count {
                table[(item::HEADER + index * item::WORDS + item::STATISTIC) as usize] = statistic;
            }
            let mut entry = [0; whole::WORDS as usize];
            entry[whole::FIRST as usize] = whole::PARTIALS + first * partial_words;
            entry[whole::COUNT as usize] = count;
            entry[whole::SCALARS as usize] = (group[0].scalars.offset / 4) as u32;
            entry[whole::BETA as usize] = group[0].beta;
            entry[whole::STATISTIC as usize] = statistic;
            table.extend(entry);
            statistic += STATISTIC_WORDS;
            first += count;
        }
        let tensors = (table.len() as u32 - table_word) / whole::WORDS;
        Self { table_word, tensors, words: statistic }
    }

    /// The word of the table at which the tensors begin.
    pub(crate) fn table_word(&self) -> u32 {
        self.table_word
    }

    /// Bytes of the status, the partial statistics and the folded ones; none if no tensor has an element.
    pub(crate) fn bytes(&self) -> u64 {
        if self.tensors > 0 { u64::from(self.words) * 4 } else { 0 }
    }

    /// All of them.
    pub(crate) fn span(&self) -> Span {
        Span { offset: 0, bytes: self.bytes() }
    }

    /// The launches that fold: the first tensor of each, and how many it takes.
    pub(crate) fn launches(&self, groups: u32) -> impl Iterator<Item = (u32, u32)> {
        let most = groups.max(1);
        (0..self.tensors).step_by(most as usize).map(move |first| (first, most.min(self.tensors - first)))
    }
}
