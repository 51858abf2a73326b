//! What readers take of memory for the bytes of others: in proportion to the bytes that they are given, or to sizes that
//! the caller names, whatever lengths the bytes claim.
//!
//! The bounds are of bytes held at a time, beyond what was held before, by the calling thread and the pool's. Each is
//! what the format can make of a byte; none was measured.
//!
//! Left out, and why:
//!
//! * `Device::decode_sparse`: the length of its output is the payload's word, as its documentation says;
//! * `Compressor::restore` of many states for few ranks: it holds a state of factors for each, and one without feedback
//!   has a number for each element in memory, and none in its bytes;
//! * compressors of gradients in a device's memory: they read messages by the same calls;
//! * files of `gradwire-planner`, which is no part of this crate's tests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use gradwire::{
    Codec, Collective, CollectiveError, Compressor, Device, Dtype, Error, Header, IndexFormat, Matrix, OneBit, Payload,
    PayloadError, PayloadView, Policy, PowerSgd, Qsgd, Recipe, SavedError, Seed, SparsePayload, StateError, Tensor,
    Ternary, TopK,
};
use gradwire_collectives::Threads;
use gradwire_tests::cases;
use gradwire_tests::hostile::places::{LENGTHS, Places, payloads};
use gradwire_tests::hostile::reader;
use gradwire_tests::low_rank::alone;
use gradwire_tests::meter::{self, Group};

/// What a call may hold whatever it is given: an error's text, lists of a few tensors.
const SMALL: u64 = 4096;
/// Blocks of the pool's queue of jobs, which a first use allocates.
const POOL: u64 = 64 << 10;
/// Numbers that a byte of a sparse payload can be unpacked to. Of packed codes those in base 3 are the densest: 1280 of
/// them in a byte of the table and 20 of words. Where every entry is there, no byte is spent on indices.
const ENTRIES: u64 = (1280u64).div_ceil(21);
/// Bytes of an index in memory.
const INDEX: u64 = 4;
/// Where Elias and Fano's code is the smallest, an entry has 4 bits or more, and takes another number while it is read.
const TWICE: u64 = 2;
const _: () = assert!(2 * TWICE * INDEX < ENTRIES * INDEX);

/// Runs a call that may hold so many bytes; a panic says of what.
fn within<T>(what: &str, allowed: u64, call: impl FnOnce() -> T) -> T {
    let done = catch_unwind(AssertUnwindSafe(|| meter::bounded(what, allowed, call)));
    done.unwrap_or_else(|_| panic!("{what} failed as said above"))
}

/// Runs a test on a pool of its own, whose threads are measured together.
fn on_metered_threads(test: impl FnOnce() + Send) {
    let group = Group::fresh();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).start_handler(move |_| group.enlist()).build();
    let pool = pool.expect("two threads");
    // A thread allocates a record when it first looks for a job.
    pool.broadcast(|_| ());
    pool.install(test);
}

fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

/// Answers of a reader: a test whose bytes are all refused, or all by their checksum, shows little.
#[derive(Debug, Default)]
struct Answers {
    accepted: u64,
    refused: u64,
}

impl Answers {
    fn note<T>(&mut self, answer: &Result<T, impl std::fmt::Debug>) {
        match answer {
            Ok(_) => self.accepted += 1,
            Err(error) => {
                let text = format!("{error:?}");
                assert!(!text.contains("Checksum"), "lies are sealed: {text}");
                self.refused += 1;
            }
        }
    }
}

/// The readers of a payload: refused bytes take nothing, accepted ones a copy where one is kept.
fn read_payload(bytes: &[u8], what: &str, answers: &mut Answers) {
    let view = within(&format!("PayloadView::from_bytes, {what}"), 0, || PayloadView::from_bytes(bytes));
    answers.note(&view);
    let header = within(&format!("Header::read, {what}"), 0, || Header::read(bytes));
    assert!(view.is_err() || header.is_ok(), "{what}: {header:?}");
    let copy = if view.is_ok() { length(bytes) } else { 0 };
    let read = within(&format!("Payload::from_bytes, {what}"), copy, || Payload::from_bytes(bytes));
    let owned = bytes.to_vec();
    let moved = within(&format!("Payload::from_vec, {what}"), 0, || Payload::from_vec(owned));
    assert_eq!(read.err(), view.err());
    assert_eq!(moved.err(), view.err());
}

/// A payload of every setting, of every packing, and some of more than a megabyte.
fn dense() -> Vec<Vec<u8>> {
    let device = Device::cpu();
    let payload = |codec: &dyn Codec, n: usize| {
        device.encode(codec, &cases::normal(n, 3), Seed::new(1)).expect("valid").into_bytes()
    };
    let mut all: Vec<Vec<u8>> = cases::settings().iter().step_by(3).map(|case| payload(&case.codec(), 300)).collect();
    for packed in [&Qsgd::bits(4).elias() as &dyn Codec, &Qsgd::bits(4).delta(), &Ternary::new().base3()] {
        all.extend([0, 300, 5000].map(|n| payload(packed, n)));
    }
    let large: [&dyn Codec; 3] = [&Qsgd::bits(8), &Qsgd::bits(8).elias(), &OneBit::new().bucket(32).without_feedback()];
    all.extend(large.map(|codec| payload(codec, 1_100_000)));
    assert_eq!(all.iter().filter(|bytes| bytes.len() > 1 << 20).count(), 2);
    all
}

#[test]
fn readers_of_payloads_take_no_more_than_a_copy_of_what_they_are_given() {
    let mut answers = Answers::default();
    for (which, bytes) in dense().iter().enumerate() {
        read_payload(bytes, "as they are", &mut answers);
        Places::of_payload(bytes)
            .lies(bytes, |bytes, what| read_payload(bytes, &format!("payload {which}, {what}"), &mut answers));
    }
    assert!(answers.accepted > 100 && answers.refused > 5000, "{answers:?}");
}

/// The readers of a sparse payload, of whose gradient so many elements are expected.
fn read_sparse(bytes: &[u8], elements: u64, what: &str, answers: &mut Answers) {
    let copy = length(bytes);
    let unpacked = ENTRIES * INDEX * length(bytes) + SMALL;
    let read =
        within(&format!("SparsePayload::from_bytes, {what}"), copy + unpacked, || SparsePayload::from_bytes(bytes));
    answers.note(&read);
    let owned = bytes.to_vec();
    let moved = within(&format!("SparsePayload::from_vec, {what}"), unpacked, || SparsePayload::from_vec(owned));
    assert_eq!(moved.as_ref().err(), read.as_ref().err());
    // Of the length that is expected there are at most as many entries.
    let expected = unpacked.min(TWICE * INDEX * elements);
    let of = |elements: u64, allowed: u64| {
        let what = format!("SparsePayload::from_bytes_of {elements}, {what}");
        within(&what, allowed, || SparsePayload::from_bytes_of(bytes, elements))
    };
    let answer = of(elements, copy + expected);
    if let Ok(payload) = &read {
        let fits = payload.len() as u64 == elements;
        assert_eq!(answer.is_ok(), fits, "{what}: {answer:?}");
        // Another length is refused before memory is taken for any index.
        let other = payload.len() as u64 + 1;
        let found = payload.len() as u64;
        assert_eq!(of(other, 0).err(), Some(PayloadError::Elements { found, expected: other }), "{what}");
    }
}

/// Selections of every format of indices and of values, of so many elements.
fn selections(elements: usize) -> Vec<Vec<u8>> {
    let device = Device::cpu();
    let x = cases::normal(elements, 5);
    let mut all = Vec::new();
    for part in [0.001, 0.05, 0.4, 1.0] {
        let codec = TopK::fraction(part);
        for codec in [
            codec.clone(),
            codec.clone().values(Dtype::Bf16),
            codec.clone().then(Qsgd::bits(4).bucket(32)),
            codec.clone().then(Qsgd::bits(4).bucket(32).elias()),
            codec.then(Ternary::new().whole_tensor().base3()),
        ] {
            all.push(device.encode_sparse(&codec, &x, Seed::new(1)).expect("valid").into_bytes());
        }
    }
    all
}

/// Every entry of a gradient of zeros, in base 3: as many entries in a byte as the format has.
fn densest(elements: usize) -> Vec<u8> {
    let codec = TopK::fraction(1.0).then(Ternary::new().whole_tensor().base3());
    let payload = Device::cpu().encode_sparse(&codec, &vec![0.0f32; elements], Seed::new(1)).expect("valid");
    assert_eq!(payload.indices().len(), elements, "all are there");
    payload.into_bytes()
}

/// The same bytes with other counts of elements and entries, and the format of indices that belongs to them; also with
/// as many elements in the payload of values, where there is one.
fn with_counts(bytes: &[u8], mut read: impl FnMut(&[u8], &str)) {
    let most = LENGTHS.into_iter().filter(|n| *n <= 1 << 31).chain([1000, 1 << 24]);
    for n in most {
        for count in [0, 1, n / 1000, n / 61, n / 8, n / 2, n - 1, n] {
            for quantized in [false, true] {
                let mut lie = bytes.to_vec();
                let format = match IndexFormat::choose(n, count) {
                    IndexFormat::All => 0,
                    IndexFormat::List => 1,
                    IndexFormat::EliasFano => 2,
                    IndexFormat::Bitmap => 3,
                };
                lie[7] = format;
                lie[8..16].copy_from_slice(&n.to_le_bytes());
                lie[20..24].copy_from_slice(&(count as u32).to_le_bytes());
                let inner = 32 + IndexFormat::choose(n, count).bytes(n, count);
                // A payload of values of as many elements as there are entries.
                if quantized && inner + 32 <= lie.len() as u64 {
                    let inner = &mut lie[inner as usize..];
                    let head = Payload::from_bytes(&densest(1280)[32..]).expect("its values").into_bytes();
                    inner[..32].copy_from_slice(&head[..32]);
                    inner[8..16].copy_from_slice(&count.to_le_bytes());
                    let words = 5 * count.div_ceil(1280) as u32;
                    inner[24..28].copy_from_slice(&words.to_le_bytes());
                    reader::seal(inner);
                    lie[6] = 3;
                }
                reader::seal(&mut lie);
                read(&lie, &format!("{count} entries of {n}, quantized: {quantized}"));
            }
        }
    }
}

#[test]
fn readers_of_sparse_payloads_take_memory_in_proportion_to_what_they_are_given() {
    let mut answers = Answers::default();
    let mut all: Vec<(u64, Vec<u8>)> = selections(900).into_iter().map(|bytes| (900, bytes)).collect();
    let large = selections(1 << 20).into_iter().filter(|bytes| (1 << 20..1 << 21).contains(&bytes.len()));
    all.extend(large.map(|bytes| (1 << 20, bytes)));
    assert!(all.last().is_some_and(|(_, bytes)| bytes.len() > 1 << 20));
    all.extend([0, 1280, 1 << 20].map(|elements| (elements as u64, densest(elements))));
    for (which, (elements, bytes)) in all.iter().enumerate() {
        read_sparse(bytes, *elements, "as they are", &mut answers);
        let mut read = |bytes: &[u8], what: &str| {
            read_sparse(bytes, *elements, &format!("payload {which}, {what}"), &mut answers);
        };
        Places::of_payload(bytes).lies(bytes, &mut read);
        if bytes.len() < 1 << 16 {
            with_counts(bytes, &mut read);
        }
    }
    assert!(answers.accepted > 100 && answers.refused > 2000, "{answers:?}");
}

/// What a state for these tensors takes, which the caller names: a number for each element and each entry of a factor,
/// whose columns are padded to 16; and the table.
fn factors(rank: u64, tensors: &[Matrix]) -> u64 {
    let of = |tensor: &Matrix| 4 * tensor.elements() + 4 * rank * (tensor.rows + tensor.columns + 32) + 256;
    tensors.iter().map(of).sum::<u64>() + SMALL
}

#[test]
fn a_state_of_factors_takes_what_its_tensors_need_whatever_its_bytes_claim() {
    let device = Device::cpu();
    let small = [Matrix::new(8, 12), Matrix::vector(5), Matrix::new(17, 9)];
    let large = [Matrix::new(512, 600), Matrix::vector(1000)];
    let mut answers = Answers::default();
    for (rank, codec, tensors) in [
        (2, PowerSgd::rank(2).min_compression(0.0), &small[..]),
        (1, PowerSgd::rank(1).one_sided(), &small),
        (1, PowerSgd::rank(1).without_feedback(), &small),
        (2, PowerSgd::rank(2), &large),
        (1, PowerSgd::rank(1).without_feedback(), &large),
    ] {
        let mut state = codec.state(tensors, Seed::new(3)).expect("valid");
        let x = cases::normal(state.elements(), 1);
        device.low_rank_step(&mut state, &x, &mut vec![0.0; x.len()], alone).expect("finite");
        let bytes = state.to_bytes().expect("idle");
        let mut read = |bytes: &[u8], what: &str| {
            let what = format!("PowerSgd::restore at rank {rank}, {what}");
            let read = within(&what, factors(rank, tensors), || codec.restore(tensors, bytes));
            assert!(!matches!(read, Err(Error::State(StateError::Checksum { .. }))), "{what}");
            answers.note(&read);
        };
        read(&bytes, "as it is");
        Places::of_factors(&bytes).lies(&bytes, read);
        // What is copied from a device has a length that the caller knows.
        let resident = codec.resident(tensors, Dtype::F32, Seed::new(3)).expect("valid");
        let image = resident.image();
        let saved = &image[..resident.saved_bytes() as usize];
        for at in (0..saved.len().min(512)).step_by(4) {
            for length in LENGTHS.into_iter().filter(|length| *length < 1 << 32) {
                let mut bytes = saved.to_vec();
                bytes[at..at + 4].copy_from_slice(&(length as u32).to_le_bytes());
                // The words, and the state that is made of them.
                let allowed = 2 * saved.len() as u64 + factors(rank, tensors);
                let what = format!("ResidentLowRank::download, {length} at {at}");
                answers.note(&within(&what, allowed, || resident.download(&bytes, &x)));
            }
        }
    }
    assert!(answers.accepted > 500 && answers.refused > 500, "{answers:?}");
}

/// Recipes of every method, and of every way to exchange.
const RECIPES: [&str; 24] = [
    "none+momentum=0.5",
    "qsgd:bits=4,bucket=64+ef",
    "uniform:bits=4,bucket=32+momentum=0.9",
    "qsgd:bits=4,bucket=64+elias+diana",
    "ternary:stretch=1.5,bucket=64+base3",
    "onebit",
    "tree+ef",
    "eden:bits=3,bucket=256",
    "quantile:levels=16,bucket=256+ef",
    "rotate:block=64,own+qsgd:bits=4,bucket=64+delta",
    "dct:block=16+qsgd:bits=4,bucket=64+ef",
    "topk:0.01+ef",
    "topk:0.4+momentum=0.5",
    "topk:0.05+qsgd:bits=4,bucket=32+elias+ef",
    "topk:0.3,persign+onebit:bucket=whole+ef",
    "topk:0.05+ef21",
    "dct:block=8,tiles+topk:k=6,block=64,clamped+ef",
    "randomk:0.05",
    "powersgd:rank=2",
    "powersgd:rank=1+noef",
    "powersgd:rank=2+qsgd:bits=8,bucket=64+elias",
    "topk:0.02+ef+gtopk",
    "topk:0.05+qsgd:bits=4,bucket=32+ef+gtopk",
    "qsgd:bits=4,bucket=64+ef+twophase",
];

/// Matrices that share a recipe, one that has factors of its own, and a vector that goes as it is.
fn compressor(recipe: &str) -> Compressor {
    let tensors =
        [Tensor::new("a", [64, 48]), Tensor::new("b", [64]), Tensor::new("c", [48, 40]), Tensor::new("d", [40, 30])];
    let policy = Policy::new(recipe).and_then(|policy| policy.named("d", "powersgd:rank=1")).expect(recipe);
    Compressor::with_policy(&policy, &tensors, 11).expect(recipe)
}

/// Compressors of one large matrix, whose messages are of more than a megabyte.
fn large() -> [Compressor; 2] {
    ["float:bf16", "topk:0.9+ef"].map(|recipe| {
        let elements = if recipe.starts_with("topk") { 300_000 } else { 550_000 };
        Compressor::new(recipe, [[1000, elements / 1000]], 11).expect(recipe)
    })
}

fn gradient(compressor: &Compressor, rank: u32) -> Vec<f32> {
    cases::normal(compressor.elements(), u64::from(rank) + 1)
}

/// A rank that keeps what the other one of two hands over.
struct Recorder {
    group: Threads,
    theirs: Vec<Vec<u8>>,
}

impl Recorder {
    fn other(&self) -> usize {
        1 - self.group.rank() as usize
    }
}

impl Collective for Recorder {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn ranks(&self) -> u32 {
        self.group.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.all_gather(mine, all)?;
        self.theirs.push(all[self.other()].clone());
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.all_to_all(to, from)?;
        self.theirs.push(from[self.other()].clone());
        Ok(())
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.group.all_reduce_sum(values)
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.exchange(peer, mine, theirs)?;
        self.theirs.push(theirs.clone());
        Ok(())
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.broadcast(root, bytes)
    }
}

/// A step of two honest ranks: of each, what the other one has handed over, and its state after the step.
fn honest(compressor: &Compressor) -> Vec<(Vec<Vec<u8>>, Vec<u8>)> {
    let groups = Threads::group(2).expect("two ranks");
    let step = |group: Threads| {
        let rank = group.rank();
        let mut group = Recorder { group, theirs: Vec::new() };
        let mut mine = compressor.clone();
        mine.exchange(&Device::cpu(), &mut group, &mut gradient(&mine, rank)).expect("both are honest");
        (group.theirs, mine.state().expect("idle"))
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || step(group))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

/// A rank of two, beside one that hands over what it is told to.
struct Beside<'m> {
    rank: u32,
    theirs: &'m [Vec<u8>],
    /// Which of them is another one, and what it is.
    forged: (usize, &'m [u8]),
    call: usize,
}

impl Beside<'_> {
    fn next(&mut self) -> Vec<u8> {
        let call = self.call;
        self.call += 1;
        match self.forged {
            (which, bytes) if which == call => bytes.to_vec(),
            // Behind an honest step's calls come refusals, which are not answered.
            _ => self.theirs.get(call).cloned().unwrap_or_default(),
        }
    }

    fn both(&mut self, mine: &[u8]) -> Vec<Vec<u8>> {
        let mut both = vec![mine.to_vec(), self.next()];
        if self.rank == 1 {
            both.swap(0, 1);
        }
        both
    }
}

impl Collective for Beside<'_> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        2
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        *all = self.both(mine);
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        *from = self.both(to[self.rank as usize]);
        Ok(())
    }

    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn exchange(&mut self, _: u32, _: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        *theirs = self.next();
        Ok(())
    }

    fn broadcast(&mut self, _: u32, _: &mut Vec<u8>) -> Result<(), CollectiveError> {
        Ok(())
    }
}

/// Bytes that a step may hold for each byte of a message: the message as the group hands it over; and where payloads have
/// no bytes but the 8 of a length, 16 in a list of where they are, beside which one of twice the room is while it grows.
const OF_A_MESSAGE: u64 = 1 + 2 + 4;
/// Bytes that a step may hold for each element of the gradient, which the caller names, with two ranks. Its own are at
/// most 20 numbers: copies of the gradient and of states of factors to be put back; the tensors of a part one after
/// another, with their residual; coefficients; the selection, its candidates, what it leaves; the payload, and the
/// message around it; the mean. Of each rank there are up to 4: an index, twice while it is read, a value, and a code
/// that is unpacked.
const OF_AN_ELEMENT: u64 = 4 * (20 + 2 * 4);

/// Messages in place of an honest one: of a payload that says little and means much, in place of the first, and
/// of nothing but lengths.
fn others(message: &[u8], elements: usize) -> Vec<Vec<u8>> {
    let Some(first) = payloads(message).into_iter().next() else { return Vec::new() };
    let with = |payload: &[u8]| {
        let before = &message[..first.start - 8];
        [before, &(payload.len() as u64).to_le_bytes(), payload, &message[first.end..]].concat()
    };
    let nothing =
        Device::cpu().encode_sparse(&TopK::count(0), &[0.0f32; 64], Seed::new(1)).expect("valid").into_bytes();
    let of = |n: u64| {
        let mut bytes = nothing.clone();
        bytes[8..16].copy_from_slice(&n.to_le_bytes());
        reader::seal(&mut bytes);
        bytes
    };
    let lengths = [&message[..24], &[0; (1 << 20) + 8]].concat();
    vec![with(&densest(elements)), with(&densest(1 << 21)), with(&of(1 << 31)), with(&of(elements as u64)), lengths]
}

#[test]
fn a_step_beside_a_forging_rank_takes_memory_in_proportion_to_messages_and_gradient() {
    let device = Device::cpu();
    let mut answers = Answers::default();
    let all: Vec<(String, Compressor)> = RECIPES.map(|recipe| (recipe.to_owned(), compressor(recipe))).into();
    let all = all.into_iter().chain(large().map(|compressor| (format!("{:?}", compressor.recipes()), compressor)));
    let all: Vec<_> = all.map(|(name, compressor)| (name, honest(&compressor), compressor)).collect();
    on_metered_threads(|| {
        for (name, honest, compressor) in &all {
            // Ranks do the same, but in a tree.
            let ranks = if name.contains("gtopk") { 0..2 } else { 0..1 };
            for rank in ranks {
                let theirs = &honest[rank as usize].0;
                let handed: u64 = theirs.iter().map(|message| length(message)).sum();
                let mine = gradient(compressor, rank);
                let step = |which: usize, bytes: &[u8], what: &str| {
                    let mut mean = mine.clone();
                    let mut compressor = compressor.clone();
                    let mut group = Beside { rank, theirs, forged: (which, bytes), call: 0 };
                    let given = handed + length(bytes);
                    let allowed = OF_A_MESSAGE * given + OF_AN_ELEMENT * compressor.elements() as u64 + SMALL + POOL;
                    let what = format!("a step of {name}, rank {rank}, message {which}, {what}");
                    within(&what, allowed, || compressor.exchange(&device, &mut group, &mut mean))
                };
                let as_it_is = step(usize::MAX, &[], "as it is");
                as_it_is.unwrap_or_else(|error| panic!("{name}: {error}"));
                for (which, message) in theirs.iter().enumerate() {
                    let mut forge = |bytes: &[u8], what: &str| answers.note(&step(which, bytes, what));
                    Places::of_message(message).lies(message, &mut forge);
                    for (number, other) in others(message, compressor.elements()).iter().enumerate() {
                        forge(other, &format!("another one, {number}"));
                    }
                }
            }
        }
    });
    assert!(answers.accepted > 100 && answers.refused > 3000, "{answers:?}");
}

/// Bytes that a compressor may hold for each byte of a state that it reads. A description that is not its own is quoted:
/// as a text, in which a byte that is none has three, and which has twice as much room while it grows, beside the third
/// that it grows out of; or later, beside two copies of a line.
const OF_A_STATE: u64 = 12;
/// Bytes for each element, which the caller names: four planes, their sums, and of each of two states of factors its
/// numbers and those of its factors; a copy of one, and two residuals where they are added.
const OF_A_RESTORED_ELEMENT: u64 = 4 * (4 + 4 + 2 * 2 + 2 + 2);

/// Recipes of every kind of state: of each plane, of factors with residual and without, of owners.
const KEPT: [&str; 9] = [
    "none+momentum=0.5",
    "qsgd:bits=4,bucket=64+ef",
    "qsgd:bits=4,bucket=64+elias+diana",
    "topk:0.4+momentum=0.5",
    "topk:0.05+ef21",
    "powersgd:rank=2",
    "powersgd:rank=1+noef",
    "topk:0.02+ef+gtopk",
    "qsgd:bits=4,bucket=64+ef+twophase",
];

/// A state whose description is another one.
fn described(state: &[u8], description: &[u8]) -> Vec<u8> {
    let old = u64::from_le_bytes(state[32..40].try_into().expect("8 bytes")) as usize;
    let mut bytes = state[..32].to_vec();
    bytes.extend((description.len() as u64).to_le_bytes());
    bytes.extend(description);
    bytes.extend(&state[40 + old..]);
    let length = bytes.len() as u64;
    bytes[8..16].copy_from_slice(&length.to_le_bytes());
    reader::seal_state(&mut bytes);
    bytes
}

#[test]
fn a_saved_state_takes_memory_in_proportion_to_its_bytes_and_the_gradient() {
    let mut answers = Answers::default();
    let all: Vec<Compressor> = KEPT.into_iter().map(compressor).chain(large()).collect();
    let all: Vec<_> = all.into_iter().map(|compressor| (honest(&compressor), compressor)).collect();
    for (which, (honest, compressor)) in all.iter().enumerate() {
        let [first, second] = [&honest[0].1[..], &honest[1].1[..]];
        let mut restore = |states: [&[u8]; 2], rank: u32, ranks: u32, what: &str| {
            let mut restored = compressor.clone();
            let given: u64 = states.iter().map(|bytes| length(bytes)).sum();
            let allowed = OF_A_STATE * given + OF_A_RESTORED_ELEMENT * compressor.elements() as u64 + 4 * SMALL;
            let what = format!("Compressor::restore of recipe {which}, as rank {rank} of {ranks}, {what}");
            let read = within(&what, allowed, || restored.restore(&states, rank, ranks));
            assert!(!matches!(read, Err(Error::Saved(SavedError::Checksum { .. }))), "{what}");
            answers.note(&read);
            read
        };
        for (rank, ranks) in [(0, 2), (1, 2), (0, 1), (2, 3)] {
            restore([first, second], rank, ranks, "as they are").expect("they were saved");
        }
        Places::of_state(first).lies(first, |bytes, what| {
            let _ = restore([bytes, second], 0, 2, what);
            if bytes.len() < 1 << 20 {
                let _ = restore([second, bytes], 0, 1, what);
            }
        });
        // A long one is read in the same way whatever the recipe.
        let length = if which == 0 { 1 << 20 } else { 3000 };
        for text in [&vec![0xff; length][..], &vec![b'\n'; length], &vec![b'7'; length], b""] {
            let lie = described(first, text);
            restore([&lie, second], 0, 2, "with another description").expect_err("another description");
        }
    }
    assert!(answers.accepted > 100 && answers.refused > 5000, "{answers:?}");
}

/// The longest text that is read; longer ones are refused before anything else.
const LONGEST: u64 = 1024;
/// Bytes that the text of a recipe may hold for each of its own: of a setting, which is a byte and a comma at least, 48,
/// in a list that has three times its room while it grows; and an error's text, which quotes it with up to six letters
/// for one, in a text that grows likewise, beside the letters of a word that is held against others, 12 for each.
const OF_A_TEXT: u64 = 48 / 2 * 3 + 3 * 6 * 2 + 12;

#[test]
fn the_text_of_a_recipe_takes_no_more_than_a_short_text_may() {
    let mut texts: Vec<String> = Vec::new();
    for recipe in RECIPES {
        // Each number of the text in place of each length.
        let mut from = 0;
        while let Some(at) = recipe[from..].find(|letter: char| letter.is_ascii_digit()).map(|at| from + at) {
            let end = recipe[at..].find(|letter: char| !letter.is_ascii_digit()).map_or(recipe.len(), |end| at + end);
            texts.extend(LENGTHS.map(|length| format!("{}{length}{}", &recipe[..at], &recipe[end..])));
            from = end;
        }
        texts.extend((0..recipe.len()).map(|end| recipe[..end].to_owned()));
    }
    let ends = |text: &str, total: usize| {
        text.repeat(total.div_ceil(text.len()))[..total / text.len() * text.len()].to_owned()
    };
    for total in [1000, 1023, 1024, 1025, 4096, (1 << 20) + 5] {
        for repeated in ["a", "+", ",", "=", "\n", "\u{7f}", "\"", "\u{10ffff}", "none+", "qsgd:bits=4+", "finite+ef+"]
        {
            texts.push(ends(repeated, total));
        }
        for before in ["topk:", "topk:k=1,", "qsgd:", "powersgd:rank=1,", "grace:", "ef:", "momentum=", "dgc:"] {
            for repeated in ["a", "\u{7f}", "9", ",", "k=1,"] {
                texts.push(format!("{before}{}", ends(repeated, total - before.len())));
            }
            // Settings that differ, of a letter or two.
            let mut settings = String::from(before);
            for number in 0.. {
                let setting = format!("{number:x},");
                if settings.len() + setting.len() > total.min(4096) {
                    break;
                }
                settings.push_str(&setting);
            }
            texts.push(settings);
        }
        texts.push(format!("topk:segments={}", ends("0of0/", total - 14)));
        texts.push(format!("topk:segments={}1of1", ends("1of9/", total - 18)));
    }
    let mut answers = Answers::default();
    for text in &texts {
        let what = format!("{} bytes, {:?}", text.len(), text.chars().take(99).collect::<String>());
        let allowed = OF_A_TEXT * length(text.as_bytes()).min(LONGEST) + SMALL;
        let read = within(&format!("Recipe::from_str, {what}"), allowed, || text.parse::<Recipe>());
        answers.note(&read);
        let json = serde_json::to_string(text).expect("a text");
        // What is quoted in JSON is a text of its own first, which grows.
        let allowed = allowed + 4 * length(json.as_bytes());
        let again = within(&format!("a recipe in JSON, {what}"), allowed, || serde_json::from_str::<Recipe>(&json));
        assert_eq!(again.ok(), read.as_ref().ok().cloned());
        // What is made of it for a model is in proportion to the model.
        let Ok(recipe) = read else { continue };
        let tensors = [Tensor::new("a", [64, 48])];
        let allowed = 64 * 64 * 48 + 4 * SMALL;
        let policy = Policy::new(recipe).expect("read");
        let made = within(&format!("a compressor, {what}"), allowed, || Compressor::with_policy(&policy, &tensors, 1));
        drop(made);
    }
    assert!(answers.accepted > 100 && answers.refused > 1000, "{answers:?}");
}
