//! Runs every operation of every entry over one tensor that stays on the device.

use std::time::Duration;

use gradwire::plan::Pass;
use gradwire::session::{Role, Session, Sizes};
use gradwire::{BackendKind, Codec, Device, Dtype, Error, PowerSgd, Seed};
use gradwire_tests::low_rank::{alone, apart};

use super::calls::{self, Timed, text};
use super::quality::{self, Accuracy, Sums};
use super::schema::Row;
use super::settings::describe;
use super::source::{Source, Typed, synthetic};
use crate::jobs::list::{Entry, Setting, matrix};
use crate::jobs::rotate::repeated;
use crate::jobs::timing::{Budget, quartiles, sample};
use crate::jobs::{self, Job, Op};

/// Time for all timings together. Checks and the rest of the run take a fraction of it.
const TIME: Duration = Duration::from_secs(100);
/// The most operations of an entry.
const OPERATIONS: u32 = 4;

/// Seconds of one run of each operation, what it works on, and what it loses.
pub(crate) struct Measured {
    elements: usize,
    timed: Vec<Timed>,
    /// Of a quantizer: that of the timed tensor.
    pub(crate) accuracy: Option<Accuracy>,
}

impl Measured {
    /// The rates and shares on a device whose copies move `copy` bytes each second.
    pub(crate) fn row(&self, entry: &Entry, device: &Device, dtype: Dtype, copy: f64) -> Row {
        let bytes = (self.elements * dtype.bytes()) as f64;
        let of = |is: &dyn Fn(Op) -> bool| {
            let timed = self.timed.iter().find(|timed| is(timed.op));
            let rate = timed.map(|t| 1e-9 * bytes / t.seconds.max(1e-12));
            (rate, timed.map(|t| t.floor as f64 / t.seconds.max(1e-12) / copy))
        };
        let (encode_gbps, encode_share) = of(&|op| op == Op::Encode);
        let (decode_gbps, decode_share) = of(&|op| op == Op::Decode);
        let (decode_add_gbps, decode_add_share) = of(&|op| op == Op::DecodeAdd);
        let (feedback_gbps, feedback_share) = of(&|op| op.feedback().is_some());
        let accuracy = self.accuracy.unwrap_or_default();
        Row {
            codec: entry.series().to_owned(),
            settings: describe(entry, dtype),
            device: device.kind().to_string(),
            elements: self.elements,
            encode_gbps,
            decode_gbps,
            decode_add_gbps,
            feedback_gbps,
            feedback: self.timed.iter().find_map(|timed| timed.op.feedback()),
            encode_share,
            decode_share,
            decode_add_share,
            feedback_share,
            ratio: accuracy.ratio(),
            relative_error: accuracy.sums.relative_error(),
            cosine: accuracy.sums.cosine(),
        }
    }
}

/// Elements to time where no size is asked for: enough to leave the caches of the device.
pub(crate) fn default_elements(device: &Device) -> usize {
    match device.kind() {
        BackendKind::Cpu => 1 << 24,
        // A software adapter is slow, and has the caches of the CPU that it runs on.
        BackendKind::Wgpu if device.is_software() => 1 << 20,
        _ => 1 << 26,
    }
}

/// An entry, and its jobs if it runs as passes.
pub(crate) struct Planned {
    pub(crate) entry: Entry,
    jobs: Vec<Job>,
}

/// The jobs of each entry on `n` elements, and why entries have none.
///
/// # Errors
/// Where the device's limits are too small for a quantizer.
pub(crate) fn plan(
    device: &Device,
    source: &Source,
    n: usize,
    entries: &[Entry],
) -> Result<(Vec<Planned>, Vec<String>), Error> {
    let (mut planned, mut left_out) = (Vec::new(), Vec::new());
    for entry in entries {
        let mut skip =
            |why: &dyn std::fmt::Display| left_out.push(format!("{} {}: {why}", entry.codec(), entry.label()));
        let mut compresses = true;
        if let Setting::PowerSgd(rank) = entry.setting {
            let state = PowerSgd::rank(rank).state(&source.matrices(), Seed::new(1))?;
            compresses = (0..source.tensors.len()).any(|tensor| state.is_compressed(tensor) == Some(true));
        }
        let is_quantizer = entry.setting.is_passes_everywhere();
        match jobs::of(entry, n, source.dtype, &device.limits()) {
            Ok(jobs) if jobs.is_empty() || !compresses => {
                skip(&"it would make no tensor smaller; try a larger --size, or an --input with matrices");
            }
            Ok(_) if device.kind() == BackendKind::Cpu && !is_quantizer => {
                planned.push(Planned { entry: *entry, jobs: Vec::new() });
            }
            Ok(jobs) => planned.push(Planned { entry: *entry, jobs }),
            Err(error @ Error::Limit { .. }) if !is_quantizer => skip(&error),
            Err(error) => return Err(error),
        }
    }
    Ok((planned, left_out))
}

/// A tensor on a device, and the buffers that every job needs.
pub(crate) struct Stage<'d> {
    session: Box<dyn Session + 'd>,
    is_cpu: bool,
    values: Vec<f32>,
    dtype: Dtype,
    decoded: Vec<f32>,
    residual: Vec<f32>,
    budget: Budget,
    copies: Vec<f64>,
}

impl<'d> Stage<'d> {
    /// Puts `n` elements of the source on the device, with room for the largest of the jobs.
    pub(crate) fn new(device: &'d Device, source: &Source, n: usize, planned: &[Planned]) -> Result<Self, Error> {
        let mut sizes = Sizes::default();
        // For copies, and for what is decoded to be checked.
        sizes.0[Role::Input as usize] = ((n * source.dtype.bytes()) as u64).next_multiple_of(4);
        sizes.0[Role::Output as usize] = 4 * n as u64;
        let sizes = planned.iter().flat_map(|planned| &planned.jobs).fold(sizes, |sizes, job| sizes.max(job.sizes));
        let mut session = device.session(sizes)?;
        let values = source.repeated(n);
        session.write(Role::Input, 0, Typed::new(&values, source.dtype).gradient().as_bytes())?;
        // A copy for each.
        let budget = Budget::new(TIME, (1 + OPERATIONS) * planned.len() as u32);
        let (decoded, residual) = (vec![0.0; n], vec![0.0; n]);
        let is_cpu = device.kind() == BackendKind::Cpu;
        Ok(Self { session, is_cpu, values, dtype: source.dtype, decoded, residual, budget, copies: Vec::new() })
    }

    /// Times and checks every operation of an entry.
    pub(crate) fn measure(&mut self, planned: &Planned) -> Result<Measured, String> {
        let entry = &planned.entry;
        let failed = |e: String| format!("{} {}: {e}", entry.series(), entry.label());
        self.copy().map_err(text).map_err(failed)?;
        // Of what has no passes on this device.
        let mut timed = Vec::new();
        if planned.jobs.is_empty() {
            timed = calls::measure(entry, &self.values, self.dtype, &mut self.budget).map_err(failed)?;
        }
        let mut sums = Sums::default();
        for job in &planned.jobs {
            let failed = |e| failed(format!("{}, in the tensor that is timed: {e}", job.op));
            let (seconds, found) = self.job(entry, job).map_err(failed)?;
            sums = found.unwrap_or(sums);
            timed.push(Timed { op: job.op, floor: job.floor, seconds });
        }
        self.budget.skip(OPERATIONS.saturating_sub(timed.len() as u32));
        let n = self.values.len();
        let accuracy = match entry.setting {
            Setting::Buckets(case) => {
                let plan = case.codec().plan(n, self.dtype).map_err(text).map_err(failed)?;
                let (gradient, payload) = ((n * self.dtype.bytes()) as u64, plan.payload_bytes() as u64);
                Some(Accuracy { sums, gradient, payload })
            }
            _ => None,
        };
        let is_matrix = matches!(entry.setting, Setting::PowerSgd(_));
        let elements = if is_matrix { matrix(n).elements() as usize } else { n };
        Ok(Measured { elements, timed, accuracy })
    }

    /// Seconds of a job, and of one that decodes what it lost.
    fn job(&mut self, entry: &Entry, job: &Job) -> Result<(f64, Option<Sums>), String> {
        // A run that goes on from the last one has a result to check only after the first.
        let first = job.op.feedback().is_some();
        if first {
            self.check(entry, job)?;
        }
        self.begin(job).map_err(text)?;
        let timed = |repeats| {
            // SAFETY: `begin` has written the tables; all passes of a plan, in order, which may be repeated.
            unsafe { self.session.time_trusted(&job.passes, repeats) }
        };
        let seconds = sample(self.budget.next(), 1, timed).map_err(text)?.median;
        let sums = if first { None } else { self.check(entry, job)? };
        Ok((seconds, sums))
    }

    /// Writes what a job's passes read beside the gradient, with a residual of zeros, and runs those that come before
    /// them.
    fn begin(&mut self, job: &Job) -> Result<(), Error> {
        let session = self.session.as_mut();
        repeated(session, Role::Residual, 0..job.sizes.of(Role::Residual), &[0; 1 << 16])?;
        job.prepare.as_ref().map_or(Ok(()), |prepare| prepare(session, &|_| 0))?;
        self.run(&job.before)
    }

    fn run(&mut self, passes: &[Pass]) -> Result<(), Error> {
        // SAFETY: all passes of a plan, in order, whose tables `begin` has written.
        unsafe { self.session.run_trusted(passes) }
    }

    /// Checks what runs of a job have left, of feedback after one run that starts anew; the sums are of what was
    /// decoded.
    fn check(&mut self, entry: &Entry, job: &Job) -> Result<Option<Sums>, String> {
        // The CPU need not be compared with itself.
        if let Some(check) = job.check.as_ref().filter(|_| !self.is_cpu) {
            let typed = Typed::new(&self.values, self.dtype);
            check(self.session.as_mut(), &|_| 0, typed.gradient())?;
        }
        match (job.op, entry.setting) {
            (Op::Decode, _) => {
                self.read().map_err(text)?;
                quality::compare(entry, &self.values, &self.decoded).map(Some)
            }
            (Op::Feedback(_), _) => {
                self.begin(job).map_err(text)?;
                self.run(&job.passes).map_err(text)?;
                self.run(&job.decode).map_err(text)?;
                self.read().map_err(text)?;
                self.session.read(Role::Residual, 0, bytemuck::cast_slice_mut(&mut self.residual)).map_err(text)?;
                quality::check_feedback(&self.values, &self.decoded, &self.residual).map(|()| None)
            }
            (Op::Step, Setting::PowerSgd(rank)) => self.near_the_cpu(job, rank).map(|()| None),
            _ => Ok(None),
        }
    }

    /// Checks that a step's output is within the tolerance between backends, since its bits are one backend's own: of
    /// values that are alike nowhere, since a matrix of few rows that repeat leaves directions to rounding.
    fn near_the_cpu(&mut self, job: &Job, rank: u32) -> Result<(), String> {
        let matrix = matrix(self.values.len());
        let x = synthetic(matrix.elements() as usize);
        let typed = Typed::new(&x, self.dtype);
        let mut state = PowerSgd::rank(rank).state(&[matrix], Seed::new(1)).map_err(text)?;
        let mut expected = vec![0.0; x.len()];
        Device::cpu().low_rank_step(&mut state, typed.gradient(), &mut expected, alone).map_err(text)?;
        self.session.write(Role::Input, 0, typed.gradient().as_bytes()).map_err(text)?;
        self.begin(job).map_err(text)?;
        self.run(&job.passes).map_err(text)?;
        self.read().map_err(text)?;
        let own = Typed::new(&self.values, self.dtype);
        self.session.write(Role::Input, 0, own.gradient().as_bytes()).map_err(text)?;
        let off = Sums::of(&expected, &self.decoded).apart(&x);
        if off <= apart(rank) {
            return Ok(());
        }
        Err(format!("the output is {off:.1e} of the gradient away from the CPU's; `cargo xtask verify` says more"))
    }

    fn read(&mut self) -> Result<(), Error> {
        self.session.read(Role::Output, 0, bytemuck::cast_slice_mut(&mut self.decoded))
    }

    /// Measures the device's copy rate once more: a machine that others use changes while the run goes on.
    fn copy(&mut self) -> Result<(), Error> {
        let mut bytes = 0;
        let timing = sample(self.budget.next(), 1, |repeats| {
            let (seconds, copied) = self.session.time_copy(Role::Input, Role::Output, repeats)?;
            bytes = copied;
            Ok(seconds)
        })?;
        self.copies.push(2.0 * bytes as f64 / timing.median.max(1e-12));
        Ok(())
    }

    /// Bytes read plus written each second by a copy: the median of the run, the least and the most.
    pub(crate) fn copy_rate(&mut self) -> (f64, [f64; 2]) {
        let [_, middle, _] = quartiles(&mut self.copies);
        (middle, [self.copies.first().copied().unwrap_or(middle), self.copies.last().copied().unwrap_or(middle)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::list;

    fn stage<'d>(device: &'d Device, source: &Source, n: usize) -> (Stage<'d>, Vec<Planned>) {
        let (planned, left_out) = plan(device, source, n, &list::all()).unwrap();
        assert!(left_out.is_empty(), "{left_out:?}");
        let mut stage = Stage::new(device, source, n, &planned).unwrap();
        stage.budget = Budget::new(Duration::ZERO, 1);
        (stage, planned)
    }

    #[test]
    fn every_setting_is_timed_and_checked_on_the_cpu() {
        let device = Device::cpu();
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let source = super::super::source::load(None, Some(20_001), dtype).unwrap();
            let (mut stage, planned) = stage(&device, &source, 20_001);
            for planned in &planned {
                let entry = &planned.entry;
                let mut measured = stage.measure(planned).unwrap();
                let of_tensors = quality::of_tensors(&device, entry, &source).unwrap();
                let found = measured.accuracy.get_or_insert(of_tensors);
                assert_eq!(*found, of_tensors, "{}: the tensor that is timed is the source", entry.label());
                let row = measured.row(entry, &device, dtype, 1e9);
                let rates = [row.encode_gbps, row.decode_gbps, row.decode_add_gbps, row.feedback_gbps];
                let is_step = matches!(entry.setting, Setting::PowerSgd(_));
                assert!(row.rate() > 0.0 && rates.iter().all(|rate| rate.is_none_or(|rate| rate > 0.0)));
                assert_eq!(row.decode_gbps.is_none(), is_step);
                assert!(row.ratio > 0.45 && row.cosine > 0.0, "{}: {}", entry.label(), row.ratio);
                assert_eq!(row.elements, if is_step { 128 * 156 } else { 20_001 });
            }
            let (rate, [least, most]) = stage.copy_rate();
            assert!(least > 0.0 && least <= rate && rate <= most);
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn every_job_is_timed_and_checked_on_a_device_that_runs_passes() {
        let device = crate::report::place::Place::PtxMachine(60).open().unwrap();
        let source = super::super::source::load(None, Some(20_011), Dtype::F32).unwrap();
        let (mut stage, mut planned) = stage(&device, &source, 20_011);
        planned.retain(|planned| !matches!(planned.entry.setting, Setting::Buckets(_)));
        for planned in &planned {
            let measured = stage.measure(planned).unwrap();
            assert_eq!(measured.timed.len(), planned.jobs.len());
        }
        // The entries of another part, which were the last in the buffers, are not taken.
        let at = planned.iter().position(|planned| planned.entry.label() == "0.1 %").unwrap();
        let own = std::mem::take(&mut planned[at].jobs[0].passes);
        let error = stage.measure(&planned[at]).err().unwrap();
        assert!(error.starts_with("top-k 0.1 %: encode, in the tensor that is timed: "), "{error}");
        planned[at].jobs[0].passes = own;
        // Nor is a residual that is not what was left.
        planned[at].jobs[1].passes.clear();
        let error = stage.measure(&planned[at]).err().unwrap();
        assert!(error.contains("encode + feedback") && error.contains("feedback keeps"), "{error}");
        // Nor is a step that was cut short.
        let step = planned.last_mut().unwrap();
        step.jobs[0].passes.pop();
        let error = stage.measure(step).err().unwrap();
        assert!(error.contains("away from the CPU's"), "{error}");
    }

    #[test]
    fn what_is_left_out_says_why() {
        let device = Device::cpu();
        let source = super::super::source::load(None, Some(100), Dtype::F32).unwrap();
        let (planned, left_out) = plan(&device, &source, 100, &list::all()).unwrap();
        assert_eq!((planned.len() + left_out.len(), left_out.len()), (list::all().len(), 3), "{left_out:?}");
        assert!(left_out[0].starts_with("PowerSGD rank 4: "), "{left_out:?}");
    }
}
