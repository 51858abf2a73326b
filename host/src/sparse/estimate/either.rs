//! A search of either kind.

use super::per_sign::PerSign;
use super::search::About;
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::sparse::entries::Entries;

/// A search that goes on in steps: [`Search::next`] says from which threshold on entries are to be selected, and
/// [`Search::take`] takes them up. Behind the last step, [`Search::end`] has those that are kept.
#[derive(Clone, Debug)]
pub(crate) enum Search {
    /// About a given number of entries, of at least a magnitude.
    About(About),
    /// A part of the elements of each sign.
    PerSign(PerSign),
}

impl Search {
    /// The threshold from which on entries are to be selected next; none after the last step.
    pub(crate) fn next(&self) -> Option<f32> {
        match self {
            Self::About(search) => search.next(),
            Self::PerSign(search) => search.next(),
        }
    }

    /// Whether [`Search::count`] may take up how many entries reach that threshold, in place of the entries.
    pub(crate) fn counts(&self) -> bool {
        matches!(self, Self::PerSign(search) if search.counts())
    }

    /// Takes up how many entries reach it.
    pub(crate) fn count(&mut self, reached: u64) {
        let _environment = FloatEnvironment::standard();
        if let Self::PerSign(search) = self {
            search.count(reached);
        }
    }

    /// Takes up the entries that reach it, all of them, in rising order.
    pub(crate) fn take(&mut self, entries: Entries) {
        let _environment = FloatEnvironment::standard();
        match self {
            Self::About(search) => search.take(entries),
            Self::PerSign(search) => search.take(entries),
        }
    }

    /// The entries that are kept.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory to order them.
    pub(crate) fn end(self) -> Result<Entries, Error> {
        match self {
            Self::About(search) => Ok(search.end()),
            Self::PerSign(search) => search.end(),
        }
    }
}
