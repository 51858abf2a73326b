//! Runs every setting over one tensor that stays on the device.

use std::time::Duration;

use gradwire::plan::Limits;
use gradwire::session::{Role, Session, Sizes};
use gradwire::wire::HEADER_BYTES;
use gradwire::{BackendKind, Codec, DecodeMode, DecodePlan, Device, Dtype, EncodePlan, Error, Seed};
use gradwire_tests::cases::Case;

use super::quality::{self, Accuracy};
use super::schema::{Feedback, Row};
use super::settings::{describe, family, feedback_plan, label};
use super::source::{Source, Typed};
use super::timing::{Budget, Floor, gbps, median, share};

/// Time for all timings together. Checks and the rest of the run take a fraction of it.
const TIME: Duration = Duration::from_secs(100);
/// The weight of decode-add: that of one worker of eight.
const WEIGHT: f32 = 0.125;

/// Seconds of one run of each operation, what it works on, and what it loses.
pub(crate) struct Measured {
    elements: usize,
    floor: Floor,
    encode: f64,
    decode: f64,
    decode_add: f64,
    feedback: Option<(f64, Feedback)>,
    /// At first that of the timed tensor.
    pub(crate) accuracy: Accuracy,
}

impl Measured {
    /// The rates and shares on a device whose copies move `copy` bytes each second.
    pub(crate) fn row(&self, case: &Case, device: &Device, dtype: Dtype, copy: f64) -> Row {
        let floor = &self.floor;
        let rate = |seconds| gbps(floor.gradient, seconds);
        Row {
            codec: family(case.kind).to_owned(),
            settings: describe(case, dtype),
            device: device.kind().to_string(),
            elements: self.elements,
            encode_gbps: rate(self.encode),
            decode_gbps: rate(self.decode),
            decode_add_gbps: rate(self.decode_add),
            feedback_gbps: self.feedback.map(|(seconds, _)| rate(seconds)),
            feedback: self.feedback.map(|(_, form)| form),
            encode_share: share(floor.encode(), self.encode, copy),
            decode_share: share(floor.decode(), self.decode, copy),
            decode_add_share: share(floor.decode_add(), self.decode_add, copy),
            feedback_share: self.feedback.map(|(seconds, _)| share(floor.feedback(), seconds, copy)),
            ratio: self.accuracy.ratio(),
            relative_error: self.accuracy.sums.relative_error(),
            cosine: self.accuracy.sums.cosine(),
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

/// A tensor on a device, and the buffers that every setting needs.
pub(crate) struct Stage<'d> {
    session: Box<dyn Session + 'd>,
    limits: Limits,
    values: Vec<f32>,
    dtype: Dtype,
    decoded: Vec<f32>,
    residual: Vec<f32>,
    budget: Budget,
    copies: Vec<f64>,
}

impl<'d> Stage<'d> {
    /// Puts `n` elements of the source on the device, with room for the largest of the settings.
    pub(crate) fn new(device: &'d Device, source: &Source, n: usize, cases: &[Case]) -> Result<Self, Error> {
        let mut sizes = Sizes::default();
        for case in cases {
            let plan = case.codec().plan(n, source.dtype)?;
            sizes = sizes.max(plan.sizes()).max(DecodePlan::new(*plan.header(), 1).sizes());
            if let Some((plan, _)) = feedback_plan(case, n, source.dtype)? {
                sizes = sizes.max(plan.sizes());
            }
        }
        let mut session = device.session(sizes)?;
        let values = source.repeated(n);
        session.write(Role::Input, 0, Typed::new(&values, source.dtype).gradient().as_bytes())?;
        // Four operations and a copy a setting.
        let budget = Budget::new(TIME, 5 * cases.len() as u32);
        let (decoded, residual) = (vec![0.0; n], vec![0.0; n]);
        let limits = device.limits();
        Ok(Self { session, limits, values, dtype: source.dtype, decoded, residual, budget, copies: Vec::new() })
    }

    /// Times and checks one setting.
    pub(crate) fn measure(&mut self, case: &Case) -> Result<Measured, String> {
        let failed = |e: Error| format!("{}: {e}", label(case));
        self.copy().map_err(failed)?;
        let plan = case.codec().plan(self.values.len(), self.dtype).map_err(failed)?;
        let encode = self.time_encode(&plan).map_err(failed)?;
        let decode = self.time_decode(&plan, DecodeMode::Write).map_err(failed)?;
        self.session.read(Role::Output, 0, bytemuck::cast_slice_mut(&mut self.decoded)).map_err(failed)?;
        let checked = quality::compare(case, &self.values, &self.decoded);
        let sums = checked.map_err(|e| format!("{}, in the tensor that is timed: {e}", label(case)))?;
        let decode_add = self.time_decode(&plan, DecodeMode::Add(WEIGHT)).map_err(failed)?;
        let feedback = match feedback_plan(case, self.values.len(), self.dtype).map_err(failed)? {
            Some((plan, form)) => {
                self.run_feedback(&plan).map_err(failed)?;
                let checked = quality::check_feedback(&self.values, &self.decoded, &self.residual);
                checked.map_err(|e| format!("{} with error feedback: {e}", label(case)))?;
                Some((self.time_encode(&plan).map_err(failed)?, form))
            }
            None => {
                self.budget.skip();
                None
            }
        };
        let elements = self.values.len();
        let payload = plan.payload_bytes() as u64;
        let gradient = (elements * self.dtype.bytes()) as u64;
        let floor = Floor { gradient, wide: 4 * elements as u64, body: payload - HEADER_BYTES as u64 };
        let accuracy = Accuracy { sums, gradient, payload };
        Ok(Measured { elements, floor, encode, decode, decode_add, feedback, accuracy })
    }

    fn time_encode(&mut self, plan: &EncodePlan) -> Result<f64, Error> {
        let passes = plan.passes(Seed::new(1), &self.limits)?;
        // SAFETY: all passes of a plan, in order, which may be repeated.
        self.budget.median(|repeats| unsafe { self.session.time_trusted(&passes, repeats) })
    }

    fn time_decode(&mut self, plan: &EncodePlan, mode: DecodeMode) -> Result<f64, Error> {
        let passes = DecodePlan::new(*plan.header(), 1).passes(mode, &self.limits)?;
        self.budget.median(|repeats| self.session.time(&passes, repeats))
    }

    /// Encodes once with feedback from a residual of zeros, and decodes.
    fn run_feedback(&mut self, plan: &EncodePlan) -> Result<(), Error> {
        self.residual.fill(0.0);
        self.session.write(Role::Residual, 0, bytemuck::cast_slice(&self.residual))?;
        // SAFETY: all passes of a plan, in order.
        unsafe { self.session.run_trusted(&plan.passes(Seed::new(1), &self.limits)?)? };
        let decode = DecodePlan::new(*plan.header(), 1);
        self.session.run(&decode.passes(DecodeMode::Write, &self.limits)?)?;
        self.session.read(Role::Output, 0, bytemuck::cast_slice_mut(&mut self.decoded))?;
        self.session.read(Role::Residual, 0, bytemuck::cast_slice_mut(&mut self.residual))
    }

    /// Measures the device's copy rate once more: a machine that others use changes while the run goes on.
    fn copy(&mut self) -> Result<(), Error> {
        let mut bytes = 0;
        let seconds = self.budget.median(|repeats| {
            let (seconds, copied) = self.session.time_copy(Role::Input, Role::Output, repeats)?;
            bytes = copied;
            Ok(seconds)
        })?;
        self.copies.push(2.0 * bytes as f64 / seconds);
        Ok(())
    }

    /// Bytes read plus written each second by a copy: the median of the run, the least and the most.
    pub(crate) fn copy_rate(&mut self) -> (f64, [f64; 2]) {
        let middle = median(&mut self.copies);
        (middle, [self.copies.first().copied().unwrap_or(middle), self.copies.last().copied().unwrap_or(middle)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_timed_and_checked_on_the_cpu() {
        let device = Device::cpu();
        let cases = super::super::settings::cases(None);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let source = super::super::source::load(None, Some(20_001), dtype).unwrap();
            let mut stage = Stage::new(&device, &source, 20_001, &cases).unwrap();
            stage.budget = Budget::new(Duration::ZERO, 1);
            for case in &cases {
                let row = stage.measure(case).unwrap().row(case, &device, dtype, 1e9);
                assert!(row.encode_gbps > 0.0 && row.decode_gbps > 0.0 && row.decode_add_gbps > 0.0);
                assert!(row.ratio > 0.95 && row.cosine > 0.0);
                assert_eq!(row.elements, 20_001);
            }
            let (rate, [least, most]) = stage.copy_rate();
            assert!(least > 0.0 && least <= rate && rate <= most);
        }
    }
}
