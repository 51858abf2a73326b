//! Any bytes, as a state of PowerSGD.

use gradwire::{Device, Error, LowRankState, Matrix, Outcome, PowerSgd, Seed, StateError};

use crate::cases;
use crate::low_rank::{alone, bits};
use crate::meter::bounded;
use crate::oracle::low_rank::{Model, Refusal, Saved};
use crate::oracle::wire::crc32;

/// Bytes that reading may hold for each byte of a state of the model, whatever is received: the state itself, its
/// factors padded to sixteen. The models are small.
const HELD: u64 = 8;
/// What it may hold besides.
const OVERHEAD: u64 = 4096;

/// What a reader may know beforehand: the first byte chooses.
fn models() -> Vec<(PowerSgd, Vec<Matrix>)> {
    let small = vec![Matrix::new(8, 12), Matrix::vector(5)];
    let more = vec![Matrix::new(0, 7), Matrix::new(17, 9), Matrix::new(2, 2), Matrix::new(5, 20)];
    vec![
        (PowerSgd::rank(2), small.clone()),
        (PowerSgd::rank(2).one_sided(), small.clone()),
        (PowerSgd::rank(1).without_feedback(), small),
        (PowerSgd::rank(2).min_compression(0.0).iterations(2), more.clone()),
        (PowerSgd::rank(1).one_sided(), more),
        (PowerSgd::rank(1), vec![]),
    ]
}

/// The model as the oracle takes it.
fn model(codec: &PowerSgd, rank: u8, feedback: bool, tensors: &[Matrix]) -> Model {
    let state = codec.state(tensors, Seed::new(0)).expect("a valid model");
    let of = |(k, t): (usize, &Matrix)| (t.rows, t.columns, state.is_compressed(k) == Some(true));
    Model { rank, feedback, tensors: tensors.iter().enumerate().map(of).collect() }
}

/// The target `low_rank`: a byte that chooses a model, and bytes with the right checksum, as a state for it.
///
/// # Errors
/// Why they were refused.
///
/// # Panics
/// Where what is refused is not what `docs/wire.md` refuses; where a state that is accepted has another residual than
/// the page says, one that is not finite, is not read again as it was written, or takes steps that differ from device
/// to device, or does not recover from what it holds; where reading holds more memory than a state of the model takes.
pub fn low_rank(devices: &[Device], bytes: &[u8]) -> Result<(), Error> {
    let (choice, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    let models = models();
    let at = usize::from(*choice) % models.len();
    let (codec, tensors) = &models[at];
    let (rank, feedback) = ([2, 2, 1, 2, 1, 1][at], at != 2);
    let model = model(codec, rank, feedback, tensors);
    let mut sealed = bytes.to_vec();
    if let Some((body, checksum)) = sealed.split_last_chunk_mut::<4>() {
        *checksum = crc32(body.iter().copied()).to_le_bytes();
    }
    assert!(sealed == bytes || codec.restore(tensors, bytes).is_err(), "accepted with two checksums");
    let allowed = HELD * model.length() as u64 + OVERHEAD;
    let read = bounded("PowerSgd::restore", allowed, || codec.restore(tensors, &sealed));
    let saved = Saved::read(&sealed, &model);
    let state = match read {
        Ok(state) => state,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "an error without a text: {error:?}");
            assert_eq!(saved.as_ref().err(), Some(&refusal(&error)), "docs/wire.md says otherwise: {error}");
            return Err(error);
        }
    };
    let saved = saved.expect("accepted, and docs/wire.md refuses it");
    let residual = state.residual().expect("no step is under way");
    assert_eq!(bits(&residual), bits(&saved.residual(&model).concat()), "docs/wire.md has another residual");
    assert!(residual.iter().all(|v| v.is_finite()), "a residual that is not finite");
    absorbs(&state, &residual);
    let written = state.to_bytes().expect("no step is under way");
    let again = codec.restore(tensors, &written).expect("it was written");
    assert_eq!(again.to_bytes().expect("no step is under way"), written, "read again, it is another");
    assert_eq!(bits(&again.residual().expect("no step is under way")), bits(&residual));
    let steps: Vec<Vec<u32>> = devices.iter().map(|device| steps(device, state.clone())).collect();
    assert!(steps.iter().all(|of| *of == steps[0]), "devices disagree");
    Ok(())
}

/// Why the page refuses what the library refuses so.
fn refusal(error: &Error) -> Refusal {
    match error {
        Error::State(StateError::Size { .. }) => Refusal::Size,
        Error::State(StateError::Magic { .. }) => Refusal::Magic,
        Error::State(StateError::Version { .. }) => Refusal::Version,
        Error::State(StateError::Checksum { .. }) => Refusal::Checksum,
        Error::State(StateError::Field { .. }) => Refusal::Field,
        Error::State(StateError::NotFinite { index }) => Refusal::NotFinite(*index),
        Error::State(StateError::TooLarge { index }) => Refusal::TooLarge(*index),
        Error::Shape { .. } => Refusal::Shape,
        other => panic!("bytes were refused with {other:?}"),
    }
}

/// A worker that leaves with the same residual doubles it, or the sum overflows and nothing changes.
fn absorbs(state: &LowRankState, residual: &[f32]) {
    let mut both = state.clone();
    match both.absorb(state) {
        Ok(()) => {
            let doubled = both.residual().expect("no step is under way");
            assert!(doubled.iter().zip(residual).all(|(sum, e)| *sum == e + e), "another sum of residuals");
        }
        Err(Error::Overflow { index, .. }) => {
            assert!((2.0 * residual[index as usize]).is_infinite(), "no overflow at {index}");
            assert_eq!(both, *state, "changed by what was refused");
        }
        Err(other) => panic!("{other:?}"),
    }
    let joining = state.joining().expect("no step is under way").residual().expect("no step is under way");
    assert!(joining.iter().all(|v| *v == 0.0));
}

/// Steps with an ordinary gradient: all that is computed. What was read may poison some, but a tensor is not kept again
/// while a step that kept it is less than three steps ago.
fn steps(device: &Device, mut state: LowRankState) -> Vec<u32> {
    let n = state.elements();
    let mut computed = Vec::new();
    let mut kept = Vec::new();
    for t in 0..4 {
        let (gradient, mut output) = (cases::normal(n, t), vec![0.0; n]);
        let hand = |factor: &mut [f32]| {
            computed.extend(bits(factor));
            Ok::<_, gradwire::Error>(())
        };
        device.low_rank_step(&mut state, &gradient, &mut output, hand).expect("the gradient is finite");
        computed.extend(bits(&output));
        let residual = state.residual().expect("no step is under way");
        assert!(residual.iter().all(|v| v.is_finite()), "a residual that is not finite");
        computed.extend(bits(&residual));
        let outcomes: Vec<_> = (0..).map_while(|tensor| state.is_compressed(tensor)).enumerate().collect();
        let mine: Vec<bool> = outcomes.iter().map(|(k, _)| state.outcome(*k) == Some(Outcome::Kept)).collect();
        for past in kept.iter().rev().take(2) {
            let twice = mine.iter().zip(past).any(|(now, before): (&bool, &bool)| *now && *before);
            assert!(!twice, "kept twice within three steps");
        }
        kept.push(mine);
        if outcomes.iter().all(|(k, _)| state.outcome(*k) == Some(Outcome::Sent)) {
            assert!(output.iter().all(|v| v.is_finite()), "sent, and not finite");
        }
    }
    computed
}

/// States of every model after several steps, one of which was poisoned; and some that end early.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let device = Device::cpu();
    let mut seeds = Vec::new();
    for (choice, (codec, tensors)) in (0u8..).zip(models()) {
        let mut state = codec.state(&tensors, Seed::new(3).step(1 << 33).tensor(5)).expect("a valid model");
        for t in 0..4 {
            let bytes = state.to_bytes().expect("no step is under way");
            seeds.push([&[choice][..], &bytes].concat());
            seeds.push([&[choice][..], &bytes[..bytes.len() - 4]].concat());
            let mut gradient = cases::normal(state.elements(), t);
            if let Some(first) = gradient.first_mut().filter(|_| t == 1) {
                *first = f32::NAN;
            }
            let mut output = vec![0.0; gradient.len()];
            device.low_rank_step(&mut state, &gradient, &mut output, alone).expect("the policy is to go on");
        }
    }
    seeds
}
