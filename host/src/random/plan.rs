//! Which entries a seed draws, and the passes that gather and scatter them. Pure.

use gradwire_kernels::arith::permutation::{halves, round_keys};
use gradwire_kernels::arith::stream::Stream;
use gradwire_kernels::params::{RandomParams, THREADS};

use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::plan::{Bindings, Kernel, Limits, Params, Pass, Role, Span};
use crate::seed::Seed;

/// Random-k: k of the n entries of a gradient, which the seed draws, so that every worker sends the same ones, and no
/// index.
///
/// Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018, definition 2.1; without bias,
/// Wangni, Wang, Liu and Zhang, "Gradient sparsification for communication-efficient distributed optimization", NeurIPS
/// 2018, section 2, with equal probabilities.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32.
/// * **Size**: 4 k bytes: k values and nothing else.
/// * **Indices**: k distinct ones, each set of k as likely as any other but for what the permutation of the seed has of
///   its own (`docs/wire.md`, Random entries).
/// * **Linear**: the values of several workers can be summed by any all-reduce, and the sum decodes to the sum.
/// * **Error**: E|x - decode|^2 = (1 - k/n) |x|^2, a contraction with delta = k/n, which is what error feedback needs.
///   With [`RandomK::unbiased`] values are multiplied by n/k: E\[decode\] = x, and omega = n/k - 1.
/// * **Seeds**: the indices depend on (run, step, tensor), and not on the worker. No other draw shares their key.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: NaN and infinity are sent as they are, every NaN as one. With error feedback, entries that are
///   sent as they are leave +0; if gradient + residual holds a NaN or an infinity, the residual stays as it was.
///
/// ```
/// use gradwire::{Device, RandomK, Seed};
/// let (device, codec, seed) = (Device::cpu(), RandomK::count(3), Seed::new(1).step(7));
/// let gradient = [1.0f32, 2.0, 3.0, 4.0, 5.0];
/// let mut sent = device.encode_random(&codec, &gradient, seed.worker(0))?;
/// let other = device.encode_random(&codec, &[10.0; 5], seed.worker(1))?;
/// sent.iter_mut().zip(&other).for_each(|(sum, value)| *sum += value); // what an all-reduce does
/// let sum = device.decode_random(&codec, &sent, 5, seed)?;
/// assert_eq!(sum.iter().filter(|value| **value > 10.0).count(), 3);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomK {
    keep: Keep,
    unbiased: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Keep {
    Count(u64),
    Fraction(f64),
}

impl RandomK {
    /// So many entries, 1 to n.
    pub const fn count(k: u64) -> Self {
        Self { keep: Keep::Count(k), unbiased: false }
    }

    /// This part of the entries, above 0 and up to 1, rounded up to whole ones.
    pub const fn fraction(part: f64) -> Self {
        Self { keep: Keep::Fraction(part), unbiased: false }
    }

    /// Values times n/k, rounded to binary32: unbiased, and of more variance.
    pub const fn unbiased(mut self) -> Self {
        self.unbiased = true;
        self
    }

    /// Whether values are multiplied by n/k.
    pub const fn is_unbiased(&self) -> bool {
        self.unbiased
    }

    /// Refuses settings that no tensor admits.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.keep {
            Keep::Count(k) => self.entries(k.min(1 << 31)).map(drop),
            Keep::Fraction(_) => self.entries(0).map(drop),
        }
    }

    /// The settings as they stand in a text.
    pub(crate) fn words(&self) -> Vec<String> {
        let kept = match self.keep {
            Keep::Count(k) => format!("k={k}"),
            Keep::Fraction(part) => part.to_string(),
        };
        [kept].into_iter().chain(self.unbiased.then(|| "unbiased".into())).collect()
    }

    /// Entries that are sent of `n`.
    ///
    /// # Errors
    /// [`Error::Keep`] for a part that is not above 0 and up to 1, and for a count of 0 or above n; [`Error::TooLong`]
    /// for more than 2^31 elements.
    pub fn entries(&self, n: u64) -> Result<u64, Error> {
        let _environment = FloatEnvironment::standard();
        if n > 1 << 31 {
            return Err(Error::TooLong { got: n });
        }
        let k = match self.keep {
            Keep::Fraction(part) if !(part > 0.0 && part <= 1.0) => {
                return Err(Error::Keep { what: "the part of random-k", got: part, allowed: "above 0 and up to 1" });
            }
            // The product of a part and a length below 2^53 is rounded once; never above n.
            Keep::Fraction(part) => ((part * n as f64).ceil() as u64).min(n),
            Keep::Count(0) => {
                return Err(Error::Keep { what: "the count of random-k", got: 0.0, allowed: "1 or more" });
            }
            Keep::Count(k) => k,
        };
        if k > n {
            let (what, allowed) = ("the count of random-k", "at most the elements of the gradient");
            return Err(Error::Keep { what, got: k as f64, allowed });
        }
        Ok(k)
    }

    /// Refuses error feedback if it would diverge.
    pub(crate) fn check_feedback(&self, n: u64, k: u64) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        let omega = n as f64 / k.max(1) as f64 - 1.0;
        if self.unbiased && omega >= 1.0 {
            let remedy = "leave out unbiased(): what is sent as it is, is a contraction".into();
            return Err(Error::FeedbackDiverges { omega, remedy });
        }
        Ok(())
    }

    /// The parameters of all entries of a tensor, with a factor of 1.
    pub(crate) fn params(&self, n: u64, seed: Seed) -> Result<RandomParams, Error> {
        let k = self.entries(n)?;
        let seed = seed.worker(0);
        let stream = Stream { key: seed.key(), tensor: seed.tensor_word(), step: seed.step_words() };
        let [low_bits, high_bits] = halves(n as u32);
        let keys = round_keys(stream);
        let factor = 1f32.to_bits();
        Ok(RandomParams {
            n: n as u32,
            entries: k as u32,
            low_bits,
            high_bits,
            factor,
            keys,
            ..RandomParams::default()
        })
    }

    /// The same with the factor of the values to send.
    pub(crate) fn encode_params(&self, n: u64, seed: Seed) -> Result<RandomParams, Error> {
        let _environment = FloatEnvironment::standard();
        let mut params = self.params(n, seed)?;
        if self.unbiased && params.entries > 0 {
            params.factor = ((n as f64 / f64::from(params.entries)) as f32).to_bits();
        }
        Ok(params)
    }
}

/// The passes of a kernel over all entries, whose tensor is one binding.
pub(crate) fn passes(
    whole: &RandomParams,
    kernel: Kernel,
    bound: &[Role],
    limits: &Limits,
) -> Result<Vec<Pass>, Error> {
    let (n, k) = (u64::from(whole.n), u64::from(whole.entries));
    let most = u64::from(limits.groups).saturating_mul(THREADS.into()).min(1 << 30);
    let mut passes = Vec::new();
    let mut first = 0;
    while first < k {
        let own = (k - first).min(most);
        let params = RandomParams { entries: own as u32, first: first as u32, ..*whole };
        let span = |role| match (kernel, role) {
            _ if !bound.contains(&role) => Span::default(),
            (Kernel::RandomGather, Role::Output) | (Kernel::RandomScatter, Role::Values) => {
                Span { offset: 4 * first, bytes: 4 * own }
            }
            _ => Span { offset: 0, bytes: 4 * n },
        };
        passes.push(Pass {
            kernel,
            params: if kernel == Kernel::RandomGather { Params::Gather(params) } else { Params::Spread(params) },
            bindings: Bindings {
                input: span(Role::Input),
                residual: span(Role::Residual),
                values: span(Role::Values),
                output: span(Role::Output),
                ..Bindings::default()
            },
            groups: own.div_ceil(THREADS.into()) as u32,
        });
        first += own;
    }
    limits.check(&passes)?;
    Ok(passes)
}
