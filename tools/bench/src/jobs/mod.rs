//! What is timed, for `bench` and for `report`: the list of codecs and settings, and of each the passes of every
//! operation, the bytes that it cannot do without, and how its result is checked.
//!
//! A quantizer is added by its settings in `tests/src/formula`, and another codec by its lines in [`list::all`] and an
//! arm in [`of`]: passes over the buffers of a session are all that is needed, whatever kernels they are of.

pub(crate) mod list;
pub(crate) mod packed;
pub(crate) mod rotate;
pub(crate) mod timing;

use std::fmt::{self, Display, Formatter};

use gradwire::plan::{Kernel, Limits, Pass};
use gradwire::session::{Role, Session, Sizes};
use gradwire::wire::HEADER_BYTES;
use gradwire::{
    Codec, DecodeMode, DecodePlan, Device, Dtype, EncodePlan, Error, Gradient, Matrix, NonFinite, PowerSgd, Qsgd, Seed,
    Selection, TopK,
};
use gradwire_tests::cases::Case;
use serde::{Deserialize, Serialize};

use self::list::{Entry, Setting, matrix, sides};
use self::rotate::repeated;

/// The weight of decode-add: that of one worker of eight.
pub(crate) const WEIGHT: f32 = 0.125;

/// How error feedback runs with a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Feedback {
    /// With the setting as it is.
    Plain,
    /// With the contraction C(x)/(1 + omega), as omega is 1 or more.
    Contractive,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Looks for a NaN.
    Scan,
    Encode,
    /// Encodes with error feedback.
    Feedback(Feedback),
    Decode,
    DecodeAdd,
    /// A whole step of PowerSGD with error feedback.
    Step,
}

impl Op {
    /// How error feedback runs in it, if it does.
    pub(crate) fn feedback(self) -> Option<Feedback> {
        match self {
            Self::Feedback(form) => Some(form),
            Self::Step => Some(Feedback::Plain),
            _ => None,
        }
    }
}

/// As tables have it.
impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scan => "scan",
            Self::Encode => "encode",
            Self::Feedback(Feedback::Plain) => "encode + feedback",
            Self::Feedback(Feedback::Contractive) => "encode + feedback, contractive",
            Self::Decode => "decode",
            Self::DecodeAdd => "decode-add",
            Self::Step => "step with feedback",
        })
    }
}

/// Bytes that an operation cannot do without, each input read once and each output written once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// Bytes of the gradient in its own type.
    gradient: u64,
    /// Bytes of the gradient as f32: the residual, and what decoding writes.
    wide: u64,
    /// Bytes of what is encoded.
    encoded: u64,
    /// Bytes of the sum that decoding changes.
    added: u64,
}

impl Floor {
    /// Of a codec that encodes in next to nothing.
    pub(crate) fn new(n: usize, dtype: Dtype) -> Self {
        let wide = 4 * n as u64;
        Self { gradient: (n * dtype.bytes()) as u64, wide, encoded: 0, added: wide }
    }

    /// Of a selection of so many entries: indices and values.
    pub(crate) fn top_k(n: usize, dtype: Dtype, entries: u64) -> Self {
        Self { encoded: 8 * entries, added: 4 * entries, ..Self::new(n, dtype) }
    }

    pub(crate) fn of(&self, op: Op) -> u64 {
        match op {
            Op::Scan => self.gradient,
            Op::Encode => self.gradient + self.encoded,
            // The residual is read and written.
            Op::Feedback(_) => self.gradient + 2 * self.wide + self.encoded,
            Op::Decode => self.encoded + self.wide,
            // The sum is read and written.
            Op::DecodeAdd => self.encoded + 2 * self.added,
            // The residual is read and written, what was formed is read once more, and the output written.
            Op::Step => self.gradient + 4 * self.wide,
        }
    }
}

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
    pub(crate) op: Op,
    /// Bytes that a run cannot do without.
    pub(crate) floor: u64,
    /// Bytes of each buffer of one set.
    pub(crate) sizes: Sizes,
    pub(crate) prepare: Option<Prepare>,
    /// Run once on each set beforehand, such as an encode before a decode.
    pub(crate) before: Vec<Pass>,
    /// What is timed.
    pub(crate) passes: Vec<Pass>,
    /// With feedback: what decodes a run's payload into the output, for whoever checks it against the residual. The
    /// output is not in `sizes`.
    pub(crate) decode: Vec<Pass>,
    /// None if a run goes on from what the last one left, so that there is no one result.
    pub(crate) check: Option<Check>,
}

/// Every operation of an entry on gradients of `n` elements; none where PowerSGD would send no fewer bytes than the
/// gradient has.
///
/// # Errors
/// Where a setting is refused, or the device's limits are too small.
pub(crate) fn of(entry: &Entry, n: usize, dtype: Dtype, limits: &Limits) -> Result<Vec<Job>, Error> {
    match entry.setting {
        Setting::Buckets(case) => quantizer(entry, &case, n, dtype, limits),
        Setting::Packed(case, entropy) => packed::jobs(entry, (&case, entropy), n, dtype, limits),
        Setting::TopK(part) => top_k(entry, part, n, dtype, limits),
        Setting::PowerSgd(rank) => {
            let (rows, columns) = sides(n);
            let setting = format!("{}, {rows} x {columns}", entry.label());
            Ok(step(rank, setting, &[matrix(n)], dtype, limits)?.into_iter().collect())
        }
    }
}

/// The look for a NaN: it reads the gradient and writes next to nothing, which shows what reading alone can reach.
///
/// # Errors
/// As [`of`].
pub(crate) fn read_only(n: usize, dtype: Dtype, limits: &Limits) -> Result<Job, Error> {
    let plan = Qsgd::bits(4).non_finite(NonFinite::Error).plan(n, dtype)?;
    let passes = plan.passes(Seed::new(1), limits)?;
    let of = |kernel| passes.iter().filter(|pass| pass.kernel() == kernel).copied().collect();
    let before = of(Kernel::Clear);
    let floor = Floor::new(n, dtype).of(Op::Scan);
    Ok(Job {
        floor,
        sizes: plan.sizes(),
        before,
        ..job("read only", "look for NaN".to_owned(), Op::Scan, of(Kernel::FiniteScan))
    })
}

/// A job that needs nothing but its passes.
fn job(codec: &'static str, setting: String, op: Op, passes: Vec<Pass>) -> Job {
    let (sizes, before, decode) = (Sizes::default(), vec![], vec![]);
    Job { codec, setting, op, floor: 0, sizes, prepare: None, before, passes, decode, check: None }
}

/// The plan with error feedback, in the form that the library admits; `None` if it admits neither.
pub(crate) fn feedback_plan(case: &Case, n: usize, dtype: Dtype) -> Result<Option<(EncodePlan, Feedback)>, Error> {
    if let Ok(plan) = case.codec().plan(n, dtype)?.with_feedback() {
        return Ok(Some((plan, Feedback::Plain)));
    }
    // Without a bound there is no contraction either.
    if case.codec().plan(n, dtype)?.omega().is_infinite() {
        return Ok(None);
    }
    let contraction = Case { contractive: true, ..*case };
    Ok(contraction.codec().plan(n, dtype)?.with_feedback().ok().map(|plan| (plan, Feedback::Contractive)))
}

fn quantizer(entry: &Entry, case: &Case, n: usize, dtype: Dtype, limits: &Limits) -> Result<Vec<Job>, Error> {
    let plan = case.codec().plan(n, dtype)?;
    let encode = plan.passes(Seed::new(1), limits)?;
    let encoded_bytes = plan.header().scalar_bytes() + plan.header().code_bytes();
    let floor = Floor { encoded: encoded_bytes, ..Floor::new(n, dtype) };
    let job = |op, passes| Job { floor: floor.of(op), ..job(entry.codec(), entry.label(), op, passes) };
    let check = Some(encoded(plan));
    let mut jobs = vec![Job { sizes: plan.sizes(), check, ..job(Op::Encode, encode.clone()) }];
    if let Some((fused, form)) = feedback_plan(case, n, dtype)? {
        let passes = fused.passes(Seed::new(1), limits)?;
        let decode = DecodePlan::new(*fused.header(), 1).passes(DecodeMode::Write, limits)?;
        jobs.push(Job { sizes: fused.sizes(), decode, ..job(Op::Feedback(form), passes) });
    }
    let decode = DecodePlan::new(*plan.header(), 1);
    let sizes = plan.sizes().max(decode.sizes());
    let over = decode.passes(DecodeMode::Write, limits)?;
    let (before, check) = (encode.clone(), Some(decoded(plan)));
    jobs.push(Job { sizes, before, check, ..job(Op::Decode, over.clone()) });
    // Decoded once before, so that the sum starts from numbers.
    let before = [encode, over].concat();
    jobs.push(Job { sizes, before, ..job(Op::DecodeAdd, decode.passes(DecodeMode::Add(WEIGHT), limits)?) });
    Ok(jobs)
}

fn top_k(entry: &Entry, part: f64, n: usize, dtype: Dtype, limits: &Limits) -> Result<Vec<Job>, Error> {
    let codec = TopK::fraction(part);
    let [selection, fused] = [codec.selection(n, dtype, false, limits)?, codec.selection(n, dtype, true, limits)?];
    let entries = selection.entries();
    let floor = Floor::top_k(n, dtype, entries);
    let job = |op, selection: &Selection, passes: &[Pass]| {
        let table = selection.clone();
        Job {
            floor: floor.of(op),
            sizes: selection.sizes(),
            prepare: Some(Box::new(move |session, at| table.prepare(session, at(Role::Workspace)))),
            ..job(entry.codec(), entry.label(), op, passes.to_vec())
        }
    };
    let over = Selection::scatter(entries, None, n as u64, limits)?;
    let add = Selection::scatter(entries, Some(WEIGHT), n as u64, limits)?;
    let mut sizes = selection.sizes();
    sizes.0[Role::Output as usize] = 4 * n as u64;
    let encode = selection.passes().to_vec();
    let feedback = Op::Feedback(Feedback::Plain);
    Ok(vec![
        Job { check: Some(selected(codec, entries)), ..job(Op::Encode, &selection, &encode) },
        Job { decode: over.clone(), ..job(feedback, &fused, fused.passes()) },
        Job { sizes, before: encode.clone(), ..job(Op::Decode, &selection, &over) },
        Job { sizes, before: [encode, over].concat(), ..job(Op::DecodeAdd, &selection, &add) },
    ])
}

/// A step of PowerSGD of a single worker with error feedback, as if the all-reduces took no time; `None` if nothing
/// is compressed. There is no check of one result: each run is the step after the last one, and the suite that ran
/// before has compared steps with the CPU's.
///
/// # Errors
/// As [`of`].
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
        floor: Floor::new(elements, dtype).of(Op::Step),
        sizes: steps.sizes(),
        prepare: Some(Box::new(move |session, at| {
            let from = at(Role::Residual);
            repeated(session, Role::Residual, from..from + residual, &[0; 1 << 16])?;
            session.write(Role::Workspace, at(Role::Workspace), &image)
        })),
        ..job("PowerSGD", setting, Op::Step, passes)
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
    use gradwire_tests::oracle::Kind;

    use super::*;

    #[test]
    fn floors_are_counted_by_hand() {
        let n = 1 << 20;
        let of = |entry: &Entry| super::of(entry, n, Dtype::F32, &Limits::NONE).unwrap();
        let mut jobs: Vec<Job> = list::all().iter().filter(|entry| entry.reported).flat_map(of).collect();
        jobs.push(read_only(n, Dtype::F32, &Limits::NONE).unwrap());
        let floor = |codec: &str, setting: &str, op: &str| {
            let found = jobs.iter().find(|j| j.codec == codec && j.setting == setting && j.op.to_string() == op);
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
        assert_eq!(floor("top-k", "1 %", "decode"), Some(4.0 + 8.0 * kept));
        assert_eq!(floor("top-k", "1 %", "decode-add"), Some(16.0 * kept));
        assert_eq!(floor("PowerSGD", "rank 4, 1024 x 1024", "step with feedback"), Some(20.0));
        assert_eq!(Floor { encoded: 600, ..Floor::new(1000, Dtype::F16) }.of(Op::DecodeAdd), 8600);
    }

    #[test]
    fn feedback_takes_the_form_that_the_library_admits() {
        let form = |kind, bits| {
            feedback_plan(&Case::new(kind, bits, Some(512)), 5000, Dtype::F32).unwrap().map(|(_, form)| form)
        };
        assert_eq!(form(Kind::QsgdMax, 8), Some(Feedback::Plain));
        assert_eq!(form(Kind::QsgdMax, 4), Some(Feedback::Contractive));
        assert_eq!(form(Kind::UniformNearest, 4), None);
    }

    #[test]
    fn nothing_is_timed_where_factors_save_nothing() {
        let entry = Entry { setting: Setting::PowerSgd(32), reported: true };
        assert!(of(&entry, 1000, Dtype::F32, &Limits::NONE).unwrap().is_empty());
    }

    #[test]
    fn a_difference_is_found() {
        assert_eq!(compare("it", &[1, 2], &[1, 2]), Ok(()));
        assert!(compare("it", &[1, 2], &[1, 3]).unwrap_err().contains("byte 1 of 2"));
        assert!(compare("it", &[1], &[1, 3]).is_err());
    }
}
