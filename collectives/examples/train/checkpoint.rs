//! A training that goes on: the parameters, and what each rank's compressors keep, in one file.

use std::io::Write;
use std::path::{Path, PathBuf};

use gradwire_collectives::Collective;

use super::error::TrainError;

/// What a file begins with.
const MAGIC: &[u8; 16] = b"gradwire train 2";
/// Bytes of the checksum at the end.
const CHECKSUM: usize = 8;

/// What was trained until a step.
#[derive(Debug, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) steps: usize,
    pub(crate) parameters: Vec<f32>,
    /// Of each rank, the state of each message's compressor.
    pub(crate) states: Vec<Vec<Vec<u8>>>,
}

/// Where a training is taken up, and where it is left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    pub(crate) resume: Option<PathBuf>,
    pub(crate) save: Option<PathBuf>,
    /// A checkpoint is also written after every so many steps.
    pub(crate) every: Option<usize>,
}

impl Files {
    /// The checkpoint to go on from, where one is named: rank 0 reads it, and the others have it from there. The ranks
    /// may be more or fewer than those that wrote it. It has so many parameters, and is from before the last step.
    pub(crate) fn load(
        &self,
        group: &mut impl Collective,
        parameters: usize,
        last: usize,
    ) -> Result<Option<Checkpoint>, TrainError> {
        let Some(path) = &self.resume else { return Ok(None) };
        let refuse = |reason: String| TrainError::Resume { path: path.clone(), reason };
        let mut bytes = match group.rank() {
            0 => std::fs::read(path).map_err(|error| refuse(error.to_string()))?,
            _ => Vec::new(),
        };
        group.broadcast(0, &mut bytes).map_err(gradwire::Error::from)?;
        let read = Checkpoint::read(&bytes).map_err(|reason| refuse(reason.to_owned()))?;
        let (found, steps) = (read.parameters.len(), read.steps);
        if found != parameters {
            return Err(refuse(format!("it has {found} parameters, and the network {parameters}")));
        }
        if steps >= last {
            return Err(refuse(format!("it was written after step {steps}, and the training has {last} steps")));
        }
        Ok(Some(read))
    }

    /// Whether a checkpoint is written after this step. After the last one it is written in any case.
    pub(crate) fn is_due(&self, step: usize) -> bool {
        self.save.is_some() && self.every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// Writes a checkpoint, if it is asked for: rank 0 has the states of all from them.
    pub(crate) fn write(
        &self,
        group: &mut impl Collective,
        (steps, parameters): (usize, &[f32]),
        states: &[Vec<u8>],
    ) -> Result<(), TrainError> {
        let Some(path) = &self.save else { return Ok(()) };
        let mut mine = Vec::new();
        states.iter().for_each(|state| put(&mut mine, state));
        let mut all = Vec::new();
        group.all_gather(&mine, &mut all).map_err(gradwire::Error::from)?;
        if group.rank() != 0 {
            return Ok(());
        }
        replace(path, &Checkpoint::to_bytes(steps, parameters, &all))
            .map_err(|source| TrainError::Save { path: path.clone(), source })
    }
}

/// The whole of a file, or what was there before.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let mut file = std::fs::File::create(&part)?;
    file.write_all(bytes)?;
    // Else the new name may be there before the bytes are, where the power fails.
    file.sync_all()?;
    std::fs::rename(&part, path)
}

impl Checkpoint {
    /// A mark; then lists, each after its length: the steps, the number of ranks, the parameters, and for each rank the
    /// list of its states; then a checksum of all of this.
    fn to_bytes(steps: usize, parameters: &[f32], of_ranks: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, &(steps as u64).to_le_bytes());
        put(&mut bytes, &(of_ranks.len() as u64).to_le_bytes());
        put(&mut bytes, &parameters.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        of_ranks.iter().for_each(|states| put(&mut bytes, states));
        let sum = fnv(&bytes).to_le_bytes();
        bytes.extend(sum);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Self, &'static str> {
        let foreign = "it is not what --save writes";
        let rest = bytes.strip_prefix(MAGIC).ok_or(foreign)?;
        let (_, sum) = rest.split_last_chunk::<CHECKSUM>().ok_or("it was cut short")?;
        let body = &bytes[..bytes.len() - CHECKSUM];
        if u64::from_le_bytes(*sum) != fnv(body) {
            return Err("its checksum does not match: it was damaged or cut short");
        }
        Self::of(&body[MAGIC.len()..]).ok_or(foreign)
    }

    /// What lists between mark and checksum hold.
    fn of(lists_of_all: &[u8]) -> Option<Self> {
        let mut all = lists(lists_of_all)?.into_iter();
        let mut number = || usize::try_from(u64::from_le_bytes(all.next()?.try_into().ok()?)).ok();
        let (steps, ranks) = (number()?, number()?);
        let parameters = all.next()?;
        let (values, rest) = parameters.as_chunks::<4>();
        let states = all.map(|of_rank| lists(&of_rank)).collect::<Option<Vec<_>>>()?;
        (rest.is_empty() && !states.is_empty() && states.len() == ranks).then(|| Self {
            steps,
            parameters: values.iter().map(|value| f32::from_le_bytes(*value)).collect(),
            states,
        })
    }
}

/// FNV-1a of 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn put(bytes: &mut Vec<u8>, list: &[u8]) {
    bytes.extend((list.len() as u64).to_le_bytes());
    bytes.extend(list);
}

/// What [`put`] has put one after another.
fn lists(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let (list, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        all.push(list.to_vec());
        bytes = rest;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let states = vec![vec![vec![1, 2, 3], Vec::new()], vec![Vec::new(), vec![4]]];
        let of_ranks: Vec<Vec<u8>> = states
            .iter()
            .map(|states: &Vec<Vec<u8>>| {
                let mut of_rank = Vec::new();
                states.iter().for_each(|state| put(&mut of_rank, state));
                of_rank
            })
            .collect();
        let bytes = Checkpoint::to_bytes(7, &[1.5, -0.0], &of_ranks);
        assert_eq!(Checkpoint::read(&bytes), Ok(Checkpoint { steps: 7, parameters: vec![1.5, -0.0], states }));
        // Cut anywhere, with more at its end, or with any bit flipped, it is no checkpoint.
        assert!((0..bytes.len()).all(|length| Checkpoint::read(&bytes[..length]).is_err()));
        assert!(Checkpoint::read(&[&bytes[..], &[9]].concat()).is_err());
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Checkpoint::read(&flipped).is_err(), "bit {bit}");
        }
        // The states of a rank that are missing leave another number of ranks, whatever the checksum says.
        let fewer = Checkpoint::to_bytes(7, &[1.5], &of_ranks[..1]);
        let mut wrong = fewer[..fewer.len() - CHECKSUM].to_vec();
        wrong[MAGIC.len() + 24] = 2;
        let sum = fnv(&wrong).to_le_bytes();
        assert!(Checkpoint::read(&[&wrong[..], &sum].concat()).is_err());
        assert!(Checkpoint::read(b"gradwire train 1").is_err());
    }
}
