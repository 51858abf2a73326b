//! Messages of a step, of which the other rank's are forged.

use gradwire::{CollectiveError, Error};
use gradwire_tests::meter::bounded;

use crate::edits::{Arrives, Choices, Edit, message};
use crate::models::{Honest, MODELS, bits, device, held, honest};
use crate::pair::{Pair, Theirs};

/// Bytes that a step may hold, whatever is received: an honest one of these models holds less than an eighth of it.
const HELD: u64 = 1 << 20;

/// The target `messages`: a byte chooses a recipe, one the rank and whether steps were made before; the rest edits what
/// the other rank hands over in the calls of a step.
///
/// # Errors
/// Why the step failed.
///
/// # Panics
/// Where gradient or state changed and the step failed, or where the state differs once the step is taken back; where
/// the same step with an honest rank then differs from what it was without all this; where a residual is not finite;
/// where the step holds more memory than these messages bear out.
pub fn messages(bytes: &[u8]) -> Result<(), Error> {
    let mut choices = Choices(bytes);
    let model = usize::from(choices.byte()) % MODELS.len();
    let whose = choices.byte();
    let rank = u32::from(whose & 1);
    let honest = honest(model, whose & 2 != 0, rank as usize);
    let edits = choices.edits();
    let (mut compressor, mut gradient) = (honest.before.clone(), honest.gradient.clone());
    // A copy cannot be told from what it was made of, but for the bytes that it counts from here on.
    let before = held(&compressor);
    let mut calls = 0;
    let swap = |mine: &[u8]| {
        calls += 1;
        forged(honest, &edits, calls - 1, mine)
    };
    let mut group = Pair { rank, swap };
    let done = bounded("Compressor::exchange", HELD, || compressor.exchange(device(), &mut group, &mut gradient));
    if let Err(error) = &done {
        assert!(!error.to_string().is_empty(), "an error without a text: {error:?}");
        assert_eq!(bits(&gradient), bits(&honest.gradient), "a gradient that a step changed which failed: {error}");
    } else {
        for residual in [compressor.residual(), compressor.owner_residual()] {
            let residual = residual.expect("no step runs");
            assert!(residual.iter().all(|value| value.is_finite()), "a residual that is not finite");
        }
        compressor.undo().expect("a step was made, or skipped");
    }
    assert!(held(&compressor) == before, "the state of before the step is not there: {done:?}");
    // Nothing else is left of it either.
    let mut mean = honest.gradient.clone();
    let mut script = honest.script.iter();
    let asks = |message: &[u8]| message.len() == 24 && message.starts_with(b"GWST");
    let mut first = true;
    let swap = |mine: &[u8]| {
        // Behind a step that was taken back, ranks ask each other once more whether they agree.
        let again = first && asks(mine) && !honest.script.first().is_some_and(|next| asks(next));
        first = false;
        let theirs = if again { Some(mine) } else { script.next().map(Vec::as_slice) };
        theirs.map(|theirs| theirs.to_vec().into()).ok_or(CollectiveError::Left { rank: 1 - rank, asked: "it".into() })
    };
    compressor.exchange(device(), &mut Pair { rank, swap }, &mut mean).expect("the other rank is honest");
    assert_eq!(bits(&mean), honest.mean, "another mean than without the step before: {done:?}");
    assert!(compressor.state().expect("no step runs") == honest.behind, "another state: {done:?}");
    done
}

/// What arrives of the other rank in a call. Behind those of an honest step this rank's own message comes back.
fn forged(honest: &Honest, edits: &[Edit<'_>], call: usize, mine: &[u8]) -> Result<Theirs, CollectiveError> {
    let bytes = honest.script.get(call).map_or(mine, Vec::as_slice);
    let edits: Vec<Edit<'_>> = edits.iter().filter(|edit| edit.is_of(call, honest.script.len())).copied().collect();
    let arrives = edits.iter().map(Edit::arrives).find(|arrives| *arrives != Arrives::Once);
    let times = match arrives {
        Some(Arrives::Fails) => return Err(CollectiveError::Left { rank: 9, asked: "a forged step".into() }),
        Some(Arrives::Never) => 0,
        Some(Arrives::Twice) => 2,
        _ => 1,
    };
    Ok(Theirs { bytes: message(bytes, &edits), times })
}
