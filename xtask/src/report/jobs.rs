//! What is timed: for each codec, the passes of an operation, the bytes that it cannot do without, and how its result is checked.
//!
//! A codec is added by a function that appends its [`Job`]s, called from [`all`]: passes over the buffers of a session are all
//! that is needed, whatever kernels they are of.

use gradwire::plan::{Kernel, Limits, Pass};
use gradwire::session::{Role, Session, Sizes};
use gradwire::wire::HEADER_BYTES;
use gradwire::{
    Codec, DecodeMode, DecodePlan, Device, Dtype, EncodePlan, Error, Gradient, Matrix, NonFinite, PowerSgd, Qsgd, Seed,
    Selection, TopK,
};
use gradwire_tests::cases::Case;
use gradwire_tests::oracle::Kind;

use super::rotate::repeated;
use crate::bench::schema::Feedback;
use crate::bench::settings::feedback_plan;

/// The weight of decode-add: that of one worker of eight.
const WEIGHT: f32 = 0.125;
/// The parts of a gradient that top-k keeps, and how a table says so.
const PARTS: [(f64, &str); 3] = [(0.001, "0.1 %"), (0.01, "1 %"), (0.1, "10 %")];

/// The ranks of PowerSGD, and how a table says so.
const RANKS: [(u32, &str); 4] = [(1, "rank 1"), (4, "rank 4"), (8, "rank 8"), (32, "rank 32")];

/// Where a set's part of a buffer begins.
pub(crate) type At<'a> = &'a dyn Fn(Role) -> u64;
/// Writes what passes read besides the gradient, into one set.
pub(crate) type Prepare = Box<dyn Fn(&mut dyn Session, At<'_>) -> Result<(), Error>>;
/// Compares what a run left in one set with what the CPU makes of the gradient; the text says where they part.
pub(crate) type Check = Box<dyn Fn(&mut dyn Session, At<'_>, Gradient<'_>) -> Result<(), String>>;

/// One operation to time.
pub(crate) struct Job {
    pub(crate) codec: &'static str,
    pub(crate) setting: String,
    pub(crate) op: &'static str,
    /// Bytes that a run cannot do without.
    pub(crate) floor: u64,
    /// Bytes of each buffer of one set.
    pub(crate) sizes: Sizes,
    pub(crate) prepare: Option<Prepare>,
    /// Run once on each set beforehand, such as an encode before a decode.
    pub(crate) before: Vec<Pass>,
    /// What is timed.
    pub(crate) passes: Vec<Pass>,
    /// None where a run goes on from what the last one left, so that there is no one result.
    pub(crate) check: Option<Check>,
}

/// Every operation on gradients of `n` elements.
///
/// What a device's limits leave no room for, while there is room for the others, is told in `left_out`.
///
/// # Errors
/// Where a setting is refused, or the device's limits are too small.
pub(crate) fn all(
    n: usize,
    dtype: Dtype,
    limits: &Limits,
    selects: bool,
    left_out: &mut Vec<String>,
) -> Result<Vec<Job>, Error> {
    let mut jobs = vec![read_only(n, dtype, limits)?];
    for (kind, bits) in
        [(Kind::QsgdMax, 4), (Kind::QsgdMax, 8), (Kind::Uniform, 4), (Kind::Uniform, 8), (Kind::OneBit, 1)]
    {
        quantizer(&Case::new(kind, bits, Some(512)), n, dtype, limits, &mut jobs)?;
    }
    // The CPU selects without passes.
    if selects {
        jobs.extend(selections(n, dtype, limits)?);
        for (rank, name) in RANKS {
            match power_sgd(rank, name, n, dtype, limits, &mut jobs) {
                Ok(()) => {}
                // Its factors are in one binding, which may be too small for them and not for the others' parts.
                Err(error @ Error::Limit { .. }) => left_out.push(format!("PowerSGD, {name}: {error}")),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(jobs)
}

/// Every operation of top-k.
///
/// # Errors
/// As [`all`].
pub(crate) fn selections(n: usize, dtype: Dtype, limits: &Limits) -> Result<Vec<Job>, Error> {
    let mut jobs = Vec::new();
    for (part, name) in PARTS {
        top_k(part, name, n, dtype, limits, &mut jobs)?;
    }
    Ok(jobs)
}

fn bytes(n: usize, dtype: Dtype) -> u64 {
    (n * dtype.bytes()) as u64
}

/// The look for a NaN: it reads the gradient and writes next to nothing, which shows what reading alone can reach.
fn read_only(n: usize, dtype: Dtype, limits: &Limits) -> Result<Job, Error> {
    let plan = Qsgd::bits(4).non_finite(NonFinite::Error).plan(n, dtype)?;
    let passes = plan.passes(Seed::new(1), limits)?;
    let of = |kernel| passes.iter().filter(|pass| pass.kernel() == kernel).copied().collect();
    Ok(Job {
        codec: "read only",
        setting: "look for NaN".to_owned(),
        op: "scan",
        floor: bytes(n, dtype),
        sizes: plan.sizes(),
        prepare: None,
        before: of(Kernel::Clear),
        passes: of(Kernel::FiniteScan),
        check: None,
    })
}

fn quantizer(case: &Case, n: usize, dtype: Dtype, limits: &Limits, jobs: &mut Vec<Job>) -> Result<(), Error> {
    let codec = case.kind.codec().name();
    let setting = format!("{} bit / 512", case.bits);
    let plan = case.codec().plan(n, dtype)?;
    let encode = plan.passes(Seed::new(1), limits)?;
    let body = plan.header().scalar_bytes() + plan.header().code_bytes();
    let (gradient, wide) = (bytes(n, dtype), 4 * n as u64);
    let mut push = |op, floor, sizes, before, passes, check| {
        jobs.push(Job { codec, setting: setting.clone(), op, floor, sizes, prepare: None, before, passes, check });
    };
    push("encode", gradient + body, plan.sizes(), vec![], encode.clone(), Some(encoded(plan)));
    if let Some((fused, form)) = feedback_plan(case, n, dtype)? {
        let op = if form == Feedback::Plain { "encode + feedback" } else { "encode + feedback, contractive" };
        let passes = fused.passes(Seed::new(1), limits)?;
        push(op, gradient + 2 * wide + body, fused.sizes(), vec![], passes, None);
    }
    // Decoding gives f32 from whatever was encoded, so one type stands for all.
    if dtype == Dtype::F32 {
        let decode = DecodePlan::new(*plan.header(), 1);
        let sizes = plan.sizes().max(decode.sizes());
        let over = decode.passes(DecodeMode::Write, limits)?;
        push("decode", body + wide, sizes, encode.clone(), over.clone(), Some(decoded(plan)));
        // Decoded once before, so that the sum starts from numbers.
        let before = [encode, over].concat();
        push("decode-add", body + 2 * wide, sizes, before, decode.passes(DecodeMode::Add(WEIGHT), limits)?, None);
    }
    Ok(())
}

fn top_k(part: f64, name: &str, n: usize, dtype: Dtype, limits: &Limits, jobs: &mut Vec<Job>) -> Result<(), Error> {
    let codec = TopK::fraction(part);
    let selection = codec.selection(n, dtype, false, limits)?;
    let (gradient, wide, entries) = (bytes(n, dtype), 4 * n as u64, selection.entries());
    let mut push = |op, floor, sizes, prepare, before, passes, check| {
        let setting = name.to_owned();
        jobs.push(Job { codec: "top-k", setting, op, floor, sizes, prepare, before, passes, check });
    };
    let table = |selection: &Selection| -> Option<Prepare> {
        let selection = selection.clone();
        Some(Box::new(move |session, at| selection.prepare(session, at(Role::Workspace))))
    };
    let (sizes, passes) = (selection.sizes(), selection.passes().to_vec());
    let check = Some(selected(codec.clone(), entries));
    push("encode", gradient + 8 * entries, sizes, table(&selection), vec![], passes.clone(), check);
    let fused = codec.selection(n, dtype, true, limits)?;
    let floor = gradient + 2 * wide + 8 * entries;
    push("encode + feedback", floor, fused.sizes(), table(&fused), vec![], fused.passes().to_vec(), None);
    if dtype == Dtype::F32 {
        let mut sizes = sizes;
        sizes.0[Role::Output as usize] = wide;
        let over = Selection::scatter(entries, None, n as u64, limits)?;
        let before = [passes, over].concat();
        let add = Selection::scatter(entries, Some(WEIGHT), n as u64, limits)?;
        // An entry is read, and its place read and written.
        push("decode-add", 16 * entries, sizes, table(&selection), before, add, None);
    }
    Ok(())
}

fn power_sgd(rank: u32, name: &str, n: usize, dtype: Dtype, limits: &Limits, jobs: &mut Vec<Job>) -> Result<(), Error> {
    // As square as a power of two can be.
    let rows = 1u64 << (n.max(1).ilog2() / 2);
    let columns = n as u64 / rows;
    let setting = format!("{name}, {rows} x {columns}");
    jobs.extend(step(rank, setting, &[Matrix::new(rows, columns)], dtype, limits)?);
    Ok(())
}

/// A step of PowerSGD of a single worker with error feedback, as if the all-reduces took no time; `None` where nothing is compressed.
/// There is no check of one result: each run is the step after the last one, and the suite that ran before has compared steps with
/// the CPU's.
pub(crate) fn step(
    rank: u32,
    setting: String,
    tensors: &[Matrix],
    dtype: Dtype,
    limits: &Limits,
) -> Result<Option<Job>, Error> {
    let steps = PowerSgd::rank(rank).resident(tensors, dtype, Seed::new(1))?;
    let elements = steps.elements();
    if steps.factor_bytes() >= 4 * elements as u64 {
        return Ok(None);
    }
    let (image, passes, residual) = (steps.image(), steps.passes_of_step(limits)?.concat(), steps.residual_bytes());
    Ok(Some(Job {
        codec: "PowerSGD",
        setting,
        op: "step with feedback",
        // Gradient, residual read and written, what was formed once more, and the output.
        floor: bytes(elements, dtype) + 16 * elements as u64,
        sizes: steps.sizes(),
        prepare: Some(Box::new(move |session, at| {
            let from = at(Role::Residual);
            repeated(session, Role::Residual, from..from + residual, &[0; 1 << 16])?;
            session.write(Role::Workspace, at(Role::Workspace), &image)
        })),
        before: vec![],
        passes,
        check: None,
    }))
}

/// The first place where two results part.
fn compare(what: &str, got: &[u8], expected: &[u8]) -> Result<(), String> {
    match got.iter().zip(expected).position(|(a, b)| a != b) {
        None if got.len() == expected.len() => Ok(()),
        None => Err(format!("{what}: {} bytes, where the CPU has {}", got.len(), expected.len())),
        Some(at) => Err(format!("{what} of the timed run: byte {at} of {} is not the CPU's", got.len())),
    }
}

fn read(session: &mut dyn Session, role: Role, at: At<'_>, bytes: usize) -> Result<Vec<u8>, String> {
    let mut out = vec![0; bytes];
    session.read(role, at(role), &mut out).map_err(|e| e.to_string())?;
    Ok(out)
}

fn encoded(plan: EncodePlan) -> Check {
    Box::new(move |session, at, gradient| {
        let expected = Device::cpu().encode_plan(&plan, gradient, &mut [], Seed::new(1)).map_err(|e| e.to_string())?;
        let (scalars, codes) = expected.as_bytes()[HEADER_BYTES..].split_at(plan.header().scalar_bytes() as usize);
        compare("scalars", &read(session, Role::Scalars, at, scalars.len())?, scalars)?;
        compare("codes", &read(session, Role::Codes, at, codes.len())?, codes)
    })
}

fn decoded(plan: EncodePlan) -> Check {
    Box::new(move |session, at, gradient| {
        let cpu = Device::cpu();
        let expected = cpu.encode_plan(&plan, gradient, &mut [], Seed::new(1)).and_then(|p| cpu.decode(&p));
        let expected = expected.map_err(|e| e.to_string())?;
        let got = read(session, Role::Output, at, 4 * expected.len())?;
        compare("decoded values", &got, bytemuck::cast_slice(&expected))
    })
}

fn selected(codec: TopK, entries: u64) -> Check {
    Box::new(move |session, at, gradient| {
        let expected = Device::cpu().encode_sparse(&codec, gradient, Seed::new(1)).map_err(|e| e.to_string())?;
        let indices = expected.indices();
        let bytes = 4 * entries as usize;
        compare("indices", &read(session, Role::Indices, at, bytes)?, bytemuck::cast_slice(indices))?;
        let value = |i: &u32| match gradient {
            Gradient::F32(x) => x[*i as usize],
            Gradient::F16(x) => x[*i as usize].to_f32(),
            Gradient::Bf16(x) => x[*i as usize].to_f32(),
        };
        let values: Vec<f32> = indices.iter().map(value).collect();
        compare("values", &read(session, Role::Values, at, bytes)?, bytemuck::cast_slice(&values))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_are_counted_by_hand() {
        let n = 1 << 20;
        let jobs = all(n, Dtype::F32, &Limits::NONE, true, &mut vec![]).unwrap();
        let floor = |codec: &str, setting: &str, op: &str| {
            let found = jobs.iter().find(|j| j.codec == codec && j.setting == setting && j.op == op);
            found.map(|j| j.floor as f64 / n as f64)
        };
        let scale = 4.0 / 512.0;
        assert_eq!(floor("read only", "look for NaN", "scan"), Some(4.0));
        assert_eq!(floor("QSGD", "4 bit / 512", "encode"), Some(4.5 + scale));
        assert_eq!(floor("QSGD", "8 bit / 512", "encode + feedback"), Some(13.0 + scale));
        assert_eq!(floor("QSGD", "4 bit / 512", "encode + feedback, contractive"), Some(12.5 + scale));
        assert_eq!(floor("uniform", "8 bit / 512", "decode"), Some(5.0 + 2.0 * scale));
        assert_eq!(floor("QSGD", "4 bit / 512", "decode-add"), Some(8.5 + scale));
        let kept = (n as f64 * 0.01).ceil() / n as f64;
        assert_eq!(floor("top-k", "1 %", "encode"), Some(4.0 + 8.0 * kept));
        assert_eq!(floor("top-k", "1 %", "encode + feedback"), Some(12.0 + 8.0 * kept));
        assert_eq!(floor("top-k", "1 %", "decode-add"), Some(16.0 * kept));
        assert_eq!(floor("PowerSGD", "rank 4, 1024 x 1024", "step with feedback"), Some(20.0));
    }

    #[test]
    fn halves_are_encoded_and_not_decoded_again() {
        let of = |dtype| all(100_000, dtype, &Limits::NONE, true, &mut vec![]).unwrap().len();
        assert_eq!((of(Dtype::F32), of(Dtype::Bf16)), (1 + 5 * 4 + 3 * 3 + 4, 1 + 5 * 2 + 3 * 2 + 4));
        assert_eq!(all(100_000, Dtype::F32, &Limits::NONE, false, &mut vec![]).unwrap().len(), 1 + 5 * 4);
    }

    #[test]
    fn a_difference_is_found() {
        assert_eq!(compare("it", &[1, 2], &[1, 2]), Ok(()));
        assert!(compare("it", &[1, 2], &[1, 3]).unwrap_err().contains("byte 1 of 2"));
        assert!(compare("it", &[1], &[1, 3]).is_err());
    }
}
