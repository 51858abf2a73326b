//! The steps of low-rank compression on a device.

use crate::backend::slices::{self, now};
use crate::device::Device;
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Gradient;
use crate::low_rank::LowRankState;
use crate::words::zeros;

/// What memory is for.
const FACTOR: &str = "a factor";

impl Device {
    /// Begins a step: adds the gradient to the residual, and writes the first factor, P = (G + E) Q, to be all-reduced.
    ///
    /// A step is this call, [`Device::advance_low_rank`] once for each further factor, and [`Device::finish_low_rank`].
    /// Each takes the mean over all workers of what the call before wrote. All entries that go over the network are
    /// linear in the gradient, so any collective that computes a mean will do. Workers that take the same means compute
    /// the same output, bit for bit on one backend.
    ///
    /// ```
    /// use gradwire::{Device, LowRankState, Matrix, PowerSgd, Seed};
    ///
    /// fn step(
    ///     device: &Device,
    ///     state: &mut LowRankState,
    ///     gradient: &[f32],
    ///     all_reduce_mean: impl Fn(&mut [f32]),
    ///     output: &mut [f32],
    /// ) -> Result<(), gradwire::Error> {
    ///     let mut p = vec![0.0; state.factor_len()];
    ///     device.begin_low_rank(state, gradient, &mut p)?;
    ///     all_reduce_mean(&mut p);
    ///     let mut q = vec![0.0; state.factor_len()];
    ///     device.advance_low_rank(state, &p, &mut q)?;
    ///     all_reduce_mean(&mut q);
    ///     device.finish_low_rank(state, &q, output)
    /// }
    ///
    /// let tensors = [Matrix::of(&[64, 32]), Matrix::vector(64)];
    /// let mut state = PowerSgd::rank(2).state(&tensors, Seed::new(42))?;
    /// assert_eq!(state.step_bytes(), 4 * (2 * (64 + 32) + 64));
    /// let (gradient, mut output) = ([0.5f32; 64 * 32 + 64], [0.0; 64 * 32 + 64]);
    /// step(&Device::cpu(), &mut state, &gradient, |_| {}, &mut output)?;
    /// assert!(output.iter().all(|v| (v - 0.5).abs() < 1e-5)); // a constant matrix has rank 1
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Order`] while another step is under way; [`Error::Length`] for a gradient of other than
    /// [`LowRankState::elements`] or a factor of other than [`LowRankState::factor_len`]; [`Error::NotFinite`] under
    /// `NonFinite::Error`; [`Error::Limit`] if a device binds less at once than a tile's rows or all factors take;
    /// [`Error::Backend`] if the device fails. The state, its residual included, is as it was whenever this fails.
    pub fn begin_low_rank<'g>(
        &self,
        state: &mut LowRankState,
        gradient: impl Into<Gradient<'g>>,
        factor: &mut [f32],
    ) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        now(slices::low_rank::begin(self.runner(), state, gradient.into(), factor))
    }

    /// Takes a factor that was all-reduced, makes its columns orthonormal, and writes the next one, Q = (G + E)^T P, to
    /// be all-reduced. With several iterations, also P again.
    ///
    /// # Errors
    /// [`Error::Order`] if another call is due; [`Error::Length`] for a factor of another length than was written,
    /// or to be written of other than [`LowRankState::factor_len`]; [`Error::NotFiniteFactor`] under
    /// `NonFinite::Error`. The state is as it was whenever this fails.
    pub fn advance_low_rank(&self, state: &mut LowRankState, reduced: &[f32], factor: &mut [f32]) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        now(slices::low_rank::advance(self.runner(), state, reduced, factor))
    }

    /// Takes the last factor that was all-reduced, and writes what all workers together send: L R^T for each matrix,
    /// and the mean of each tensor that is not compressed. The residual is what that leaves of gradient + residual, L
    /// R^T being that of all workers (as in the paper's code and PyTorch's hook): the workers' residuals are on average
    /// what was not sent.
    ///
    /// `output` may be the buffer that held the gradient.
    ///
    /// A matrix of which a factor came back other than finite, or with an entry of 2^120 or more, is NaN in the output,
    /// all of it, and nothing of it was sent: its factors and what its residual held stay, and the finite part of the
    /// gradient joins the residual. If that happens to it twice within three steps, it may be the residual that
    /// overflows, and the second time drops it. An element of a tensor that is not compressed whose mean is not finite
    /// is treated alike. [`LowRankState::outcome`] says what became of each tensor.
    ///
    /// # Errors
    /// [`Error::Order`] if another call is due; [`Error::Length`]; [`Error::NotFiniteFactor`] under
    /// `NonFinite::Error`. The state is as it was whenever this fails.
    pub fn finish_low_rank(&self, state: &mut LowRankState, reduced: &[f32], output: &mut [f32]) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        now(slices::low_rank::finish(self.runner(), state, reduced, output))
    }

    /// A whole step: [`Device::begin_low_rank`] to [`Device::finish_low_rank`], with `all_reduce_mean` in between; on a
    /// single worker, one that does nothing.
    ///
    /// The error is the collective's own type, which calls of this crate convert to; [`Error`] will do.
    ///
    /// ```
    /// use gradwire::{Device, Matrix, PowerSgd, Seed};
    ///
    /// #[derive(Debug)]
    /// enum Failure {
    ///     Peer,
    ///     Gradwire(gradwire::Error),
    /// }
    /// impl From<gradwire::Error> for Failure {
    ///     fn from(error: gradwire::Error) -> Self {
    ///         Self::Gradwire(error)
    ///     }
    /// }
    ///
    /// let device = Device::cpu();
    /// let mut state = PowerSgd::rank(2).state(&[Matrix::new(64, 32)], Seed::new(1))?;
    /// let before = state.clone();
    /// let (gradient, mut output) = ([0.5f32; 64 * 32], [0.0; 64 * 32]);
    /// let dead = |_: &mut [f32]| Err(Failure::Peer);
    /// assert!(matches!(device.low_rank_step(&mut state, &gradient, &mut output, dead), Err(Failure::Peer)));
    /// assert_eq!(state, before); // the same gradient can be handed over again
    /// device.low_rank_step(&mut state, &gradient, &mut output, |_| Ok::<_, gradwire::Error>(()))?;
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// As those calls, and what `all_reduce_mean` gives. The step is then given up, and state and output are as they
    /// were to the bit: unlike after [`LowRankState::abandon`], the gradient has not joined the residual, and may be
    /// handed over again. For that there is room for a second residual, which the calls one by one do without.
    pub fn low_rank_step<'g, E: From<Error>>(
        &self,
        state: &mut LowRankState,
        gradient: impl Into<Gradient<'g>>,
        output: &mut [f32],
        all_reduce_mean: impl FnMut(&mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let _environment = FloatEnvironment::standard();
        Error::expect_len("output", "elements", output.len(), state.elements() as u64)?;
        let gradient = gradient.into();
        state.attempt(|state| {
            let factor = self.low_rank_rounds(state, gradient, all_reduce_mean)?;
            Ok(self.finish_low_rank(state, &factor, output)?)
        })
    }

    /// A whole step in place, as [`Device::low_rank_step`]: the buffer that holds the gradient becomes the output.
    ///
    /// ```
    /// use gradwire::{Device, Matrix, PowerSgd, Seed};
    /// let mut state = PowerSgd::rank(1).state(&[Matrix::new(16, 16)], Seed::new(1))?;
    /// let mut gradient = [0.5f32; 256];
    /// Device::cpu().low_rank_step_in_place(&mut state, &mut gradient, |_| Ok::<_, gradwire::Error>(()))?;
    /// assert!(gradient.iter().all(|v| (v - 0.5).abs() < 1e-5)); // a constant matrix has rank 1
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Device::low_rank_step`]. The buffer then holds the gradient.
    pub fn low_rank_step_in_place<E: From<Error>>(
        &self,
        state: &mut LowRankState,
        gradient: &mut [f32],
        all_reduce_mean: impl FnMut(&mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let _environment = FloatEnvironment::standard();
        state.attempt(|state| {
            let factor = self.low_rank_rounds(state, Gradient::F32(gradient), all_reduce_mean)?;
            Ok(self.finish_low_rank(state, &factor, gradient)?)
        })
    }

    /// A step up to its last call: the last factor, all-reduced.
    fn low_rank_rounds<E: From<Error>>(
        &self,
        state: &mut LowRankState,
        gradient: Gradient<'_>,
        mut all_reduce_mean: impl FnMut(&mut [f32]) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        let mut factor = zeros(state.factor_len() as u64, FACTOR)?;
        self.begin_low_rank(state, gradient, &mut factor)?;
        all_reduce_mean(&mut factor)?;
        for _ in 1..state.rounds() {
            let mut next = zeros(state.factor_len() as u64, FACTOR)?;
            self.advance_low_rank(state, &factor, &mut next)?;
            all_reduce_mean(&mut next)?;
            factor = next;
        }
        Ok(factor)
    }
}
