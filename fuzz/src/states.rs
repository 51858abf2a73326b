//! Saved states of a compressor that were edited.

use gradwire::{Collective, CollectiveError, Compressor, Error};
use gradwire_tests::cases;
use gradwire_tests::meter::bounded;

use crate::edits::{Choices, Edit, state};
use crate::models::{MODELS, bits, compressor, device, held, honest};

/// Bytes that reading may hold for each byte of the states, and besides: planes, sums of them, factors, and what an
/// error quotes.
const HELD: u64 = 8;
const OVERHEAD: u64 = 1 << 14;
/// Choosing bytes from here on take a rank, or the number of ranks, as it comes.
const RAW: u8 = 0xf0;

/// The target `states`: a byte chooses a recipe, one how many states of which ranks there are, one the rank that takes
/// them up and one the ranks that there are now; the rest edits the states.
///
/// # Errors
/// Why they were refused.
///
/// # Panics
/// Where a compressor changed by what it refused; where what it took up is written and read as something else; where a
/// step fails after it and changes something; where reading holds more memory than the states bear out.
pub fn states(bytes: &[u8]) -> Result<(), Error> {
    let mut choices = Choices(bytes);
    let model = usize::from(choices.byte()) % MODELS.len();
    let (saved, rank, ranks) = (choices.byte(), choices.byte(), choices.byte());
    let count = usize::from(saved >> 1) % 5;
    // Now and then as they come, else a rank that there is.
    let ranks = if ranks < RAW { 1 + u32::from(ranks) % 4 } else { u32::from(ranks - RAW) };
    let rank = if rank < RAW { u32::from(rank) % ranks.max(1) } else { u32::from(rank) };
    let edits = choices.edits();
    let of = |rank: usize| honest(model, saved & 1 != 0, rank % 2).before.state().expect("no step runs");
    let edited = |(number, bytes): (usize, Vec<u8>)| {
        let edits: Vec<Edit<'_>> = edits.iter().filter(|edit| edit.is_of(number, count)).copied().collect();
        if edits.is_empty() { bytes } else { state(&bytes, &edits) }
    };
    let states: Vec<Vec<u8>> = (0..count).map(of).enumerate().map(edited).collect();
    let mut mine = honest(model, true, 0).before.clone();
    let before = held(&mine);
    let allowed = HELD * states.iter().map(|bytes| bytes.len() as u64).sum::<u64>() + OVERHEAD;
    let done = bounded("Compressor::restore", allowed, || mine.restore(&states, rank, ranks));
    if let Err(error) = &done {
        assert!(!error.to_string().is_empty(), "an error without a text: {error:?}");
        assert!(held(&mine) == before, "changed by what was refused: {error}");
        return done;
    }
    assert!(mine.undo().is_err(), "the step before what was taken up is taken back");
    let written = mine.state().expect("no step runs");
    let mut again = compressor(model);
    again.restore(&vec![&written; ranks as usize], rank, ranks).expect("it was written");
    assert!(again.state().expect("no step runs") == written, "read again, it is another");
    assert!(held(&again).1 == held(&mine).1, "read again, it has other residuals");
    step(mine, rank, ranks);
    Ok(())
}

/// A step with an ordinary gradient: what was read may spoil it.
fn step(mut compressor: Compressor, rank: u32, ranks: u32) {
    let gradient = cases::normal(compressor.elements(), 5);
    let (mut mean, before) = (gradient.clone(), held(&compressor));
    match compressor.exchange(device(), &mut Mirror { rank, ranks }, &mut mean) {
        Ok(()) => compressor.undo().expect("a step was made, or skipped"),
        Err(_) => assert_eq!(bits(&mean), bits(&gradient), "a gradient that a step changed which failed"),
    }
    assert!(held(&compressor) == before, "the state of before the step is not there");
}

/// A group in which every rank hands over what this one does.
struct Mirror {
    rank: u32,
    ranks: u32,
}

impl Collective for Mirror {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        *all = vec![mine.to_vec(); self.ranks as usize];
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.all_gather(to[self.rank as usize], from)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        values.iter_mut().for_each(|value| *value *= self.ranks as f32);
        Ok(())
    }

    fn exchange(&mut self, _: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        *theirs = mine.to_vec();
        Ok(())
    }

    fn broadcast(&mut self, _: u32, _: &mut Vec<u8>) -> Result<(), CollectiveError> {
        Ok(())
    }
}
