//! The state of a compressor as bytes, for this number of workers or another.

use super::core::Compressor;
use super::description::description;
use super::group::Group;
use super::last::LastStep;
use super::method::Part;
use super::method::dense::Dense;
use super::owner::Owner;
use super::planes;
use super::step::put_back;
use crate::error::{Error, SAVED_MAGIC as MAGIC, SAVED_VERSION as VERSION, SavedError};
use crate::low_rank::LowRankState;
use crate::recipe::Algorithm;

/// Bytes in front of the description: magic, version, size, run, steps.
const HEAD: usize = 32;
/// Bytes after the numbers.
const CHECKSUM: usize = 4;

/// A saved state, checked against a compressor.
struct Saved<'b> {
    steps: u64,
    /// The planes, as little-endian f32; each empty if the compressor has none.
    planes: [&'b [u8]; 4],
    states: Vec<LowRankState>,
    /// Owners' residuals, of the parts that have two phases.
    owners: Vec<SavedOwner<'b>>,
}

/// An owner's residual: whose piece it is of, and its numbers as little-endian f32.
#[derive(Clone, Copy)]
struct SavedOwner<'b> {
    /// Rank and ranks; none before the first step.
    place: Option<(u32, u32)>,
    bytes: &'b [u8],
}

impl Compressor {
    /// The state of this rank as bytes, with a version and a checksum: steps, residuals, momentum, factors. A
    /// checkpoint holds those of all ranks.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for them; [`ExchangeError::BrokenOff`](crate::ExchangeError).
    pub fn state(&self) -> Result<Vec<u8>, Error> {
        self.expect_whole()?;
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(self.run.to_le_bytes());
        bytes.extend(self.steps.to_le_bytes());
        put(&mut bytes, self.description().as_bytes())?;
        let [_, _, shift, _] = self.planes.kept();
        for plane in &self.planes.kept()[..planes_of(shift)] {
            let size = 4 * plane.len();
            reserve(&mut bytes, size)?;
            bytes.extend((size as u64).to_le_bytes());
            bytes.extend(plane.iter().flat_map(|value| value.to_le_bytes()));
        }
        for part in &self.parts {
            if let Some(low_rank) = part.method.low_rank() {
                put(&mut bytes, &low_rank.state.to_bytes()?)?;
            }
        }
        for (_, dense) in self.parts.iter().filter_map(with_owner) {
            let (place, kept) = dense.owner.kept();
            let place = place.map_or(Vec::new(), |(rank, ranks)| [rank.to_le_bytes(), ranks.to_le_bytes()].concat());
            let size = place.len() + 4 * kept.len();
            reserve(&mut bytes, size)?;
            bytes.extend((size as u64).to_le_bytes());
            bytes.extend(place);
            bytes.extend(kept.iter().flat_map(|value| value.to_le_bytes()));
        }
        let size = (bytes.len() + CHECKSUM) as u64;
        bytes[8..16].copy_from_slice(&size.to_le_bytes());
        let sum = crc32fast::hash(&bytes);
        bytes.extend(sum.to_le_bytes());
        Ok(bytes)
    }

    /// Takes up saved states: those of all ranks that there were, in the order of the ranks, for rank `rank` of `ranks`
    /// that there are now.
    ///
    /// If there are as many ranks as before, each goes on with the bits of an uninterrupted run. If there are
    /// fewer, rank r takes up the states r, r + ranks, r + 2 ranks and so on, and residuals and momenta are added;
    /// if there are more, the new ranks begin with none. So the sum of the residuals over the ranks stays the
    /// same, but for the rounding of the additions; the residuals of owners of pieces ([`Algorithm::TwoPhase`]) are
    /// added to them then. Where the number of ranks changes, the estimate of each rank begins at
    /// the mean of all.
    ///
    /// ```
    /// use gradwire::{Compressor, Recipe};
    /// let new = || Compressor::new("topk:0.01+ef", [[1000, 100]], 7);
    /// let saved = [new()?.state()?, new()?.state()?]; // of two ranks
    /// let mut third = new()?;
    /// third.restore(&saved, 2, 3)?; // as the last of three
    /// assert_eq!(third.steps(), 0);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Saved`] for bytes that are no state, or that of another model, policy, run or step than the others;
    /// [`Error::State`] for factors that are none; [`Error::Overflow`] if a sum is too large for f32. The compressor
    /// is then as it was.
    pub fn restore(&mut self, states: &[impl AsRef<[u8]>], rank: u32, ranks: u32) -> Result<(), Error> {
        let _environment = crate::FloatEnvironment::standard();
        if states.is_empty() || rank >= ranks {
            return Err(SavedError::Ranks { rank, ranks, states: states.len() }.into());
        }
        // Factors take memory: those of the first, for ranks that are new, and those that this rank takes up.
        let needed = |index: usize| index == 0 || index % ranks as usize == rank as usize;
        let mut all = Vec::with_capacity(states.len());
        for (index, bytes) in states.iter().enumerate() {
            all.push(self.read(bytes.as_ref(), needed(index))?);
        }
        let steps = all[0].steps;
        if let Some(other) = all.iter().find(|saved| saved.steps != steps) {
            return Err(other_than("step", other.steps, steps));
        }
        let mine = || all.iter().skip(rank as usize).step_by(ranks as usize);
        let [residual, momentum, shift, _] = self.planes.kept().map(<[f32]>::len);
        let mut sums = [planes::zeros(residual)?, planes::zeros(momentum)?];
        for (nth, saved) in mine().enumerate() {
            for ((sums, plane), what) in
                sums.iter_mut().zip(saved.planes).zip(["sum of the residuals", "sum of the momenta"])
            {
                let values = numbers(plane);
                for (index, (sum, value)) in (0..).zip(sums.iter_mut().zip(values)) {
                    // The first is taken as it is, a zero's sign included. A non-finite value counts for nothing beside
                    // finite ones, the first too.
                    let total = match (nth, value.is_finite(), sum.is_finite()) {
                        (0, ..) | (_, true, false) => value,
                        (_, false, _) => *sum,
                        (_, true, true) => *sum + value,
                    };
                    if !total.is_finite() && value.is_finite() {
                        return Err(Error::Overflow { what, index });
                    }
                    *sum = total;
                }
            }
        }
        let mut restored = Vec::new();
        for index in 0..all[0].states.len() {
            let mut of_ranks = mine().filter_map(|saved| saved.states.get(index));
            let mut state = match of_ranks.next() {
                Some(first) => first.clone(),
                None => all[0].states[index].joining()?,
            };
            of_ranks.try_for_each(|leaving| state.absorb(leaving))?;
            restored.push(state);
        }
        // The mean of all ranks' estimates is what each rank has as such, whatever their number.
        let own = if states.len() == ranks as usize { (rank as usize, 2) } else { (0, 3) };
        let mut estimates = [planes::zeros(shift)?, planes::zeros(shift)?];
        for (estimate, (from, plane)) in estimates.iter_mut().zip([own, (0, 3)]) {
            estimate.iter_mut().zip(numbers(all[from].planes[plane])).for_each(|(to, value)| *to = value);
        }
        let ([mut residual, momentum], [shift, mean]) = (sums, estimates);
        let mut owners = Vec::new();
        for (index, (group, dense)) in self.parts.iter().filter_map(with_owner).enumerate() {
            // As many ranks as before, and this one in its place: it keeps its piece. Others may be elsewhere; each
            // piece is still one rank's.
            if let Some(SavedOwner { place, bytes }) = all.get(rank as usize).map(|saved| saved.owners[index])
                && states.len() == ranks as usize
                && place.is_none_or(|place| place == (rank, ranks))
            {
                owners.push(Owner::of(place, numbers(bytes).collect()));
                continue;
            }
            for saved in mine() {
                let SavedOwner { place, bytes } = saved.owners[index];
                // Non-finite values count as zero.
                let finite: Vec<f32> = numbers(bytes).map(|v| if v.is_finite() { v } else { 0.0 }).collect();
                dense.add_owner(group, (place, &finite), &mut residual);
            }
            owners.push(Owner::default());
        }
        let broken = residual.iter().position(|value| !value.is_finite()).filter(|_| !owners.is_empty());
        if let Some(index) = broken.filter(|index| all.iter().all(|saved| finite_at(saved.planes[0], *index))) {
            return Err(Error::Overflow { what: "sum of the residuals", index: index as u64 });
        }
        self.planes.set([residual, momentum, shift, mean]);
        put_back(&mut self.parts, restored);
        let dense =
            self.parts.iter_mut().filter(|part| has_owner(&part.group)).filter_map(|part| part.method.dense_mut());
        dense.zip(owners).for_each(|(dense, owner)| dense.owner = owner);
        (self.steps, self.agreed, self.digest, self.broken_off) = (steps, false, 0, false);
        self.last = LastStep::default();
        Ok(())
    }

    /// What two compressors must agree in: the tensors and their recipes.
    fn description(&self) -> String {
        description(&self.tensors, &self.recipes)
    }

    /// Checks a state, and finds its parts; those of factors if they are asked for.
    fn read<'b>(&self, bytes: &'b [u8], factors: bool) -> Result<Saved<'b>, Error> {
        let found = bytes.len() as u64;
        let Some((head, _)) = bytes.split_first_chunk::<HEAD>().filter(|_| bytes.len() >= HEAD + CHECKSUM) else {
            return Err(SavedError::Size { found, expected: (HEAD + CHECKSUM) as u64 }.into());
        };
        let magic = [head[0], head[1], head[2], head[3]];
        if magic != MAGIC {
            return Err(SavedError::Magic { found: magic }.into());
        }
        let mut reader = Reader(&head[4..]);
        let version = reader.take::<4>().map(u32::from_le_bytes);
        if let Some(found) = version.filter(|version| *version != VERSION) {
            return Err(SavedError::Version { found }.into());
        }
        let expected = reader.word()?;
        if found != expected {
            return Err(SavedError::Size { found, expected }.into());
        }
        let (run, steps) = (reader.word()?, reader.word()?);
        let (body, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
        let (written, computed) = (Reader(checksum).take().map(u32::from_le_bytes), crc32fast::hash(body));
        if let Some(found) = written.filter(|written| *written != computed) {
            return Err(SavedError::Checksum { found, computed }.into());
        }
        if run != self.run {
            return Err(other_than("run", run, self.run));
        }
        let mut reader = Reader(&body[HEAD..]);
        let (theirs, ours) = (String::from_utf8_lossy(reader.part("description")?), self.description());
        if theirs != ours {
            let most = theirs.split('\n').count().max(ours.split('\n').count());
            let lines = theirs.split('\n').map(Some).chain(std::iter::repeat(None));
            let ours = ours.split('\n').map(Some).chain(std::iter::repeat(None));
            let differs = lines.zip(ours).zip(0..most).find(|((theirs, ours), _)| theirs != ours);
            let ((theirs, ours), index) = differs.unwrap_or(((None, None), 0));
            let text = |line: Option<&str>| line.map_or("none".into(), |line| format!("{index} as {line}"));
            return Err(other_than("tensor", text(theirs), text(ours)));
        }
        let kept = self.planes.kept();
        let fields = ["residual bytes", "momentum bytes", "estimate bytes", "mean estimate bytes"];
        let mut planes = [&[][..]; 4];
        for ((plane, kept), field) in planes.iter_mut().zip(kept).zip(fields).take(planes_of(kept[2])) {
            *plane = reader.part(field)?;
            if plane.len() != 4 * kept.len() {
                return Err(SavedError::Field { field, found: plane.len() as u64 }.into());
            }
        }
        let mut states = Vec::new();
        for part in &self.parts {
            let Some(low_rank) = part.method.low_rank() else { continue };
            let bytes = reader.part("factor bytes")?;
            if !factors {
                continue;
            }
            let state = low_rank.state.codec.restore(&low_rank.matrices(&part.group, &self.tensors), bytes)?;
            if state.steps() != steps {
                return Err(other_than("step of the factors", state.steps(), steps));
            }
            if state.seed != part.group.seed(run) {
                return Err(
                    SavedError::Field { field: "seed of the factors", found: part.group.tensors.len() as u64 }.into()
                );
            }
            states.push(state);
        }
        let mut owners = Vec::new();
        for (group, dense) in self.parts.iter().filter_map(with_owner) {
            let field = "owner residual bytes";
            let mut bytes = Reader(reader.part(field)?);
            let found = bytes.0.len() as u64;
            let wrong = SavedError::Field { field, found };
            if found == 0 {
                owners.push(SavedOwner { place: None, bytes: bytes.0 });
                continue;
            }
            let mut number = || bytes.take().map(u32::from_le_bytes).ok_or(wrong.clone());
            let place = (number()?, number()?);
            let elements = dense.piece(group, place.0, place.1).iter().map(|sub| sub.range.len()).sum::<usize>();
            if place.0 >= place.1 || bytes.0.len() != 4 * elements {
                return Err(wrong.into());
            }
            owners.push(SavedOwner { place: Some(place), bytes: bytes.0 });
        }
        if !reader.0.is_empty() {
            return Err(SavedError::Field { field: "bytes behind the last part", found: reader.0.len() as u64 }.into());
        }
        Ok(Saved { steps, planes, states, owners })
    }
}

/// Characters of a description that an error quotes.
const QUOTED: usize = 200;

fn other_than(what: &'static str, found: impl ToString, expected: impl ToString) -> Error {
    // A description that another program wrote may be of any length.
    let beginning = |text: String| match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    };
    SavedError::Other { what, found: beginning(found.to_string()), expected: beginning(expected.to_string()) }.into()
}

/// Planes that are written: those of estimates only if there are any.
fn planes_of(shift: &[f32]) -> usize {
    if shift.is_empty() { 2 } else { 4 }
}

/// Whether a group's sums may be quantized by their owners, with a residual.
fn has_owner(group: &Group) -> bool {
    group.recipe.memory().feedback && matches!(group.recipe.algorithm(), Algorithm::TwoPhase { .. })
}

/// A part's group and quantizer, if its sums may be quantized by their owners, with a residual.
fn with_owner(Part { group, method }: &Part) -> Option<(&Group, &Dense)> {
    method.dense().filter(|_| has_owner(group)).map(|dense| (group, dense))
}

fn finite_at(plane: &[u8], index: usize) -> bool {
    numbers(plane).nth(index).is_none_or(f32::is_finite)
}

/// Numbers of their bytes.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// Gets memory for the number of a part's bytes, the bytes, and the checksum at the end.
fn reserve(bytes: &mut Vec<u8>, part: usize) -> Result<(), Error> {
    let size = size_of::<u64>() + part + CHECKSUM;
    bytes.try_reserve(size).map_err(|_| Error::no_memory("the bytes of a state", size as u64))
}

/// Writes bytes after their number.
fn put(bytes: &mut Vec<u8>, part: &[u8]) -> Result<(), Error> {
    reserve(bytes, part.len())?;
    bytes.extend((part.len() as u64).to_le_bytes());
    bytes.extend(part);
    Ok(())
}

/// Takes bytes off the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn word(&mut self) -> Result<u64, SavedError> {
        let found = self.0.len() as u64;
        self.take().map(u64::from_le_bytes).ok_or(SavedError::Field { field: "bytes where a number should be", found })
    }

    /// Bytes after their number.
    fn part(&mut self, field: &'static str) -> Result<&'a [u8], SavedError> {
        let found = self.word()?;
        let taken = usize::try_from(found).ok().and_then(|bytes| self.0.split_at_checked(bytes));
        let (taken, rest) = taken.ok_or(SavedError::Field { field, found })?;
        self.0 = rest;
        Ok(taken)
    }
}
