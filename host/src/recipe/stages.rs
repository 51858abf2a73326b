//! A recipe, and its stages.

use super::algorithm::Algorithm;
use super::memory::{Memory, Shift};
use super::methods::{METHODS, Method};
use super::quantize::Quantize;
use super::words::words_of;
use crate::codec::powersgd::PowerSgd;
use crate::codec::quantizer::Quantizer;
use crate::codec::topk::{Keep, TopK, Values};
use crate::error::{Error, RecipeError};
use crate::float_environment::FloatEnvironment;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::random::RandomK;
use crate::rotation::{Dct, Rotation};
use crate::wire::Entropy;

/// What becomes of a gradient: memory, then selection or factors, then quantization, each with its settings.
///
/// A recipe is made of typed settings, or of a text that names its stages with `+` between them. The order of the
/// stages in the text does not matter; each has its place.
///
/// | stage | text | what it does |
/// |---|---|---|
/// | none | `none` | sends f32, summed by an all-reduce |
/// | selection | `topk:0.01`, `topk:k=100`, `topk:k=4,block=64`, `topk:above=0.001` | [`TopK`] |
/// | selection | `topk:0.01,estimate=gaussian`, `topk:0.01,estimate=sidco` | [`TopK::estimate`], of all tensors of the recipe together |
/// | selection | `topk:0.3,persign` | [`TopK::per_sign`], of all tensors of the recipe together |
/// | selection | `topk:0.001,warmup=4000`, `dgc:ratio=0.001,nesterov,clip=5` | [`Recipe::warm_up`], with `dgc` also `momentum=0.9`, and `nesterov` and `clip` if they are said |
/// | clipping | `clip=5` | [`Recipe::clip`]: of each rank's gradient, before anything else |
/// | bound | `peers:norm=20` | [`Recipe::peers_within`]: a step in which a rank sends more fails |
/// | quantization | `qsgd:bits=4,bucket=64`, `float:e4m3,scaled`, `float:int16,bound=0.001`, `ternary:clip=2.5`, `sign` | a [`Quantizer`], each of which says its word |
/// | quantization | `f16`, `bf16`, after a selection | [`TopK::values`] |
/// | rotation | `rotate`, `rotate:block=512`, `rotate:own`; `eden` and `drive` bring it | [`Recipe::rotate`] |
/// | transform | `dct`, `dct:block=64`, `dct:tiles` | [`Recipe::dct`]: all after it is of coefficients |
/// | entropy coding | `elias`, after `ternary`, `qsgd`, `float:int8` and `float:int16`, after a selection too | [`Qsgd::elias`](crate::Qsgd::elias): codes of as many bits as a level needs |
/// | entropy coding | `delta`, after the same | [`Qsgd::delta`](crate::Qsgd::delta): fewer bits than `elias` for levels from 31 on |
/// | entropy coding | `base3`, after `ternary` and `qsgd:bits=2`, after a selection too | [`Ternary::base3`](crate::Ternary::base3): five codes in a byte, and runs of zeros in one |
/// | entropy coding | `sparse`, after the same as `elias` | [`Qsgd::sparse`](crate::Qsgd::sparse): places and levels of the codes that are not zero |
/// | vote | `vote`, after `sign:unit` and `signum` | [`Recipe::vote`]: the majority of the ranks, not their mean |
/// | factors | `powersgd:rank=4`, `powersgd:rank=4+qsgd:bits=8` | [`PowerSgd`], summed in f32, or through a [`Quantizer`] |
/// | entries that the seed draws | `randomk:0.01`, `randomk:k=100`, `randomk:0.01,unbiased` | [`RandomK`] |
/// | memory | `ef` | error feedback. `onebit`, `sign`, `ternary:stretch=1`, `randomk` and `powersgd` have it unless `noef` is there |
/// | memory | `ef:beta=0.9,gamma=1` | error feedback of beta times the residual and gamma times the gradient |
/// | memory | `momentum=0.9` | momentum correction, with error feedback unless `noef` is there |
/// | memory | `nesterov` | [`Recipe::nesterov`], the other form of the momentum |
/// | memory | `unmasked` | [`Recipe::unmasked`], of a selection's momentum |
/// | memory | `signum`, `signum:momentum=0.9` | [`Recipe::momentum_alone`], of signs |
/// | memory | `ef21` | differences to an estimate, of a contraction: [`Shift::Ef21`] |
/// | memory | `diana`, `diana:alpha=0.1` | differences to an estimate, of an unbiased codec: [`Shift::Diana`] |
/// | exchange | `gtopk`, of a selection with `ef` | [`Algorithm::Tree`] |
/// | exchange | `twophase`, `twophase:from=4`, of a quantizer | [`Algorithm::TwoPhase`] |
/// | all of it | `grace:terngrad` | a published method with the defaults of GRACE: [`Recipe::methods`] |
/// | policy | `finite` | NaN and infinity are an error, and no skipped step: [`NonFinite::Error`] |
///
/// **Momentum correction** (Lin, Han, Mao, Wang and Dally, "Deep gradient compression", ICLR 2018, equation 4 and
/// section 3.2): with gradient g, momentum u and residual v, u = m u + g, then v = v + u is encoded, and v keeps what
/// was not sent. Where entries are selected, u becomes zero at those that were sent. A momentum that is not finite
/// counts as zero in the next step. The optimizer after it then has no momentum of its own. `nesterov` is their other
/// form: u = m (u + g), then v = v + (u + g).
///
/// ```
/// use gradwire::{Qsgd, Recipe, TopK};
/// let recipe: Recipe = "topk:0.01+qsgd:bits=4,bucket=32+ef".parse()?;
/// assert_eq!(recipe, Recipe::from(TopK::fraction(0.01)).quantize(Qsgd::bits(4).bucket(32)).feedback());
/// assert_eq!(recipe.to_string().parse::<Recipe>()?, recipe);
/// let promise = recipe.promise(10_000)?;
/// assert!(!promise.unbiased && promise.delta > Some(0.008)); // 0.01 kept, and 1 - 32/(4 * 49) of that
///
/// let error = "topk:0.01+qsgd:bit=4".parse::<Recipe>().unwrap_err();
/// assert_eq!(error.to_string(), "at byte 15 of \"topk:0.01+qsgd:bit=4\": \"bit\" is no setting of qsgd (do you mean bits?); bits, levels, bucket, l2 or contractive could stand there");
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The norm that gradients are clipped to.
    pub(crate) clip: Option<f32>,
    /// The largest norm that a rank may send.
    pub(crate) peers: Option<f32>,
    pub(crate) select: Option<TopK>,
    /// Steps over which the part that is kept falls to the one that was set.
    pub(crate) warm_up: u64,
    /// The requested rotation; [`Recipe::rotation`] is the one that runs. `None` if the codec brings the same one.
    pub(super) rotation: Option<Rotation>,
    /// What takes the gradient to coefficients, of which all other stages are.
    pub(crate) dct: Option<Dct>,
    pub(crate) quantize: Quantize,
    pub(crate) entropy: Entropy,
    /// Whether ranks vote, and no mean is taken.
    pub(crate) vote: bool,
    pub(crate) factors: Option<PowerSgd>,
    /// Entries that the seed draws.
    pub(crate) random: Option<RandomK>,
    pub(crate) memory: Memory,
    /// How payloads go from rank to rank.
    pub(crate) algorithm: Algorithm,
    pub(crate) non_finite: NonFinite,
}

impl Recipe {
    /// The published methods with the defaults of GRACE (Xu et al., ICDCS 2021), which a text names as
    /// `grace:terngrad`. More stages may follow. [`Method::differs`] lists the differences from GRACE's code.
    ///
    /// ```
    /// use gradwire::Recipe;
    /// for method in Recipe::methods() {
    ///     let named: Recipe = format!("grace:{}", method.name).parse()?;
    ///     assert_eq!(named, method.recipe.parse()?);
    /// }
    /// assert_eq!("grace:powersgd+noef".parse::<Recipe>()?.to_string(), "powersgd:rank=1+noef");
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn methods() -> &'static [Method] {
        METHODS
    }

    /// Sends f32.
    pub fn none() -> Self {
        Self {
            clip: None,
            peers: None,
            select: None,
            warm_up: 0,
            rotation: None,
            dct: None,
            quantize: Quantize::Exact,
            entropy: Entropy::None,
            vote: false,
            factors: None,
            random: None,
            memory: Memory::default(),
            algorithm: Algorithm::Gather,
            non_finite: NonFinite::Propagate,
        }
    }

    /// The same with this quantization of the values to send, instead of the one it has, and with this one's packing of
    /// codes.
    ///
    /// ```
    /// use gradwire::{Qsgd, Recipe};
    /// let packed = Recipe::from(Qsgd::bits(4).elias());
    /// assert_eq!(packed.to_string(), "qsgd:bits=4+elias");
    /// assert_eq!(packed.quantize(Qsgd::bits(8)).to_string(), "qsgd:bits=8");
    /// ```
    pub fn quantize(mut self, quantize: impl Into<Quantize>) -> Self {
        self.set_quantize(quantize.into());
        self.settle();
        self
    }

    /// The same with this packing of the codes, of a quantizer that is set before: [`Recipe::quantize`] takes that of
    /// the new one.
    pub fn entropy(mut self, entropy: Entropy) -> Self {
        self.entropy = entropy;
        self
    }

    /// The same with error feedback.
    pub fn feedback(self) -> Self {
        self.feedback_weights(1.0, 1.0)
    }

    /// The same with error feedback of beta times the residual and gamma times the gradient: [`Memory::beta`].
    ///
    /// ```
    /// use gradwire::{Recipe, TopK};
    /// let fading = Recipe::from(TopK::fraction(0.01)).feedback_weights(0.9, 1.0);
    /// assert_eq!(fading.to_string(), "topk:0.01+ef:beta=0.9");
    /// ```
    pub fn feedback_weights(mut self, beta: f32, gamma: f32) -> Self {
        self.memory = Memory { feedback: true, beta, gamma, shift: None, ..self.memory };
        self
    }

    /// The same with differences to an estimate sent, in place of gradients, and without any other memory.
    ///
    /// ```
    /// use gradwire::{Qsgd, Recipe, Shift, TopK};
    /// assert_eq!(Recipe::from(TopK::fraction(0.01)).shift(Shift::Ef21).to_string(), "topk:0.01+ef21");
    /// let diana = Recipe::from(Qsgd::bits(4).bucket(64)).shift(Shift::Diana { alpha: Some(0.5) });
    /// assert_eq!(diana.to_string(), "qsgd:bits=4,bucket=64+diana:alpha=0.5");
    /// ```
    pub fn shift(mut self, shift: Shift) -> Self {
        self.memory = Memory { shift: Some(shift), ..Memory::default() };
        self
    }

    /// The same without any memory: values that are not sent are lost.
    pub fn without_feedback(mut self) -> Self {
        self.memory = Memory::default();
        self
    }

    /// The same with momentum correction of this factor, and with error feedback.
    pub fn momentum(mut self, factor: f32) -> Self {
        self.memory = Memory { feedback: true, momentum: Some(factor), shift: None, ..self.memory };
        self
    }

    /// The same with momentum of this factor, and without error feedback: the encoded values are u = m u + g.
    ///
    /// Source: Bernstein, Wang, Azizzadenesheli and Anandkumar, "signSGD: Compressed optimisation for non-convex
    /// problems", ICML 2018, algorithm 2, Signum: the sign of a momentum. Its (1 - m) g in place of g changes no
    /// sign.
    ///
    /// ```
    /// use gradwire::{Recipe, Sign};
    /// let signum = Recipe::from(Sign::unit()).momentum_alone(0.9);
    /// assert_eq!(signum, "signum".parse()?);
    /// assert_eq!(signum.to_string(), "sign:unit+noef+momentum=0.9");
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn momentum_alone(mut self, factor: f32) -> Self {
        self.memory = Memory { momentum: Some(factor), ..Memory::default() };
        self
    }

    /// The same with the momentum in Nesterov's form: u = m (u + g), and u + g takes the place of the gradient. Needs a
    /// momentum.
    ///
    /// Source: Lin, Han, Mao, Wang and Dally, "Deep gradient compression", ICLR 2018, section 3.2, whose residual is v
    /// = v + u + g; here it is v + (u + g), each operation rounded. Where entries are selected, u becomes zero at those
    /// that were sent. The state that is kept, and saved, is u + g, of which m times is the next step's u: so a step
    /// takes no more memory than the plain form, but for a copy of the gradient, which a step that fails puts back.
    ///
    /// ```
    /// use gradwire::{Recipe, TopK};
    /// let recipe = Recipe::from(TopK::fraction(0.01)).momentum(0.9).nesterov();
    /// assert_eq!(recipe, "dgc:ratio=0.01,nesterov".parse()?);
    /// assert_eq!(recipe.to_string(), "topk:0.01+momentum=0.9+nesterov");
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn nesterov(mut self) -> Self {
        self.memory.nesterov = true;
        self
    }

    /// The same with a momentum that stays at the entries that a selection sends. Otherwise it becomes zero there, as
    /// in section 3.2 of "Deep gradient compression", which stops stale momentum; with the authors' code it is a
    /// setting (`momentum_masking`).
    ///
    /// ```
    /// use gradwire::{Recipe, TopK};
    /// let recipe = Recipe::from(TopK::fraction(0.01)).momentum(0.9).unmasked();
    /// assert_eq!(recipe, "dgc:ratio=0.01,unmasked".parse()?);
    /// assert_eq!(recipe.to_string(), "topk:0.01+momentum=0.9+unmasked");
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn unmasked(mut self) -> Self {
        self.memory.unmasked = true;
        self
    }

    /// The same with the gradient of each rank clipped before anything is added to it: where its L2 norm is above c /
    /// sqrt(ranks), it is multiplied by c / sqrt(ranks) / norm. c is above 0.
    ///
    /// Source: Lin, Han, Mao, Wang and Dally, "Deep gradient compression", ICLR 2018, section 3.3: residuals grow with
    /// the steps, so that gradients are clipped where they are added, and the sum of the ranks' is as long as one of
    /// norm c clipped after it.
    ///
    /// * **Of what**: the norm is that of all tensors of the recipe together. Tensors of other recipes, and those that
    ///   go uncompressed, have no part in it, and are not clipped.
    /// * **Determinism**: backend to backend. The norm of each tensor is a sum of integers, as of
    ///   [`Qsgd::l2`](crate::Qsgd::l2) with [`Qsgd::whole_tensor`](crate::Qsgd::whole_tensor); their squares are summed
    ///   in binary64, in the order of the tensors.
    /// * **Bound**: the norm of n clipped elements passes c / sqrt(ranks) by the factor 1 + 2^-22 + sqrt(n) 2^-23 at
    ///   most.
    /// * **Edge cases**: a gradient within the norm keeps its bits. One with a NaN or an infinity is not clipped. A
    ///   tensor's norm counts as the largest finite number if it is above that, and as a multiple of 2^-149 below
    ///   2^-126.
    ///
    /// ```
    /// use gradwire::{Recipe, TopK};
    /// let recipe = Recipe::from(TopK::fraction(0.01)).momentum(0.9).clip(5.0);
    /// assert_eq!(recipe, "dgc:ratio=0.01,clip=5".parse()?);
    /// assert_eq!(recipe.to_string(), "topk:0.01+momentum=0.9+clip=5");
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn clip(mut self, norm: f32) -> Self {
        self.clip = Some(norm);
        self
    }

    /// The norm c that gradients are clipped to: [`Recipe::clip`].
    pub fn clipped(&self) -> Option<f32> {
        self.clip
    }

    /// The same with a bound on what each rank sends in a step. Where the values that a rank's payloads decode to have
    /// an L2 norm above it, the step fails on every rank with
    /// [`ExchangeError::Norm`](crate::ExchangeError::Norm), which names the first such rank, and changes nothing. The
    /// bound is above 0.
    ///
    /// A mean has no other defence against a rank that sends finite but huge values: it can be moved by `norm / ranks`
    /// per step and rank, and no further. This does not find a rank that stays within the bound.
    ///
    /// * **Of what**: all tensors of the recipe together; of coefficients with [`Recipe::dct`]; of what is sent, which
    ///   is a difference with an estimate, and has the residual in it with error feedback. Tensors that go uncompressed
    ///   beside them have the same bound, all of them together. They are then gathered, and not summed on the way.
    /// * **Choosing it**: a payload can be longer than its gradient: about sqrt(1 + omega) times for an unbiased codec,
    ///   and as much as the residual that has gathered. Several times the largest honest norm leaves room for that.
    /// * **Determinism**: backend to backend. Each rank decodes on the CPU, and takes norms as [`Recipe::clip`] does,
    ///   right to 2^-22 of themselves. So all ranks refuse alike.
    /// * **Costs**: every payload is decoded once more, on the CPU. It takes 4 bytes of memory per element for a time.
    /// * **Not with**: factors, random-k, votes, two phases and the tree of gtopk, in which no rank sees what another
    ///   one has sent; and not in queued steps.
    ///
    /// ```
    /// use gradwire::{Qsgd, Recipe};
    /// let recipe = Recipe::from(Qsgd::bits(4)).peers_within(20.0);
    /// assert_eq!(recipe, "qsgd:bits=4+peers:norm=20".parse()?);
    /// assert_eq!(recipe.to_string(), "qsgd:bits=4+peers:norm=20");
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn peers_within(mut self, norm: f32) -> Self {
        self.peers = Some(norm);
        self
    }

    /// The largest norm that a rank may send: [`Recipe::peers_within`].
    pub fn peers_bound(&self) -> Option<f32> {
        self.peers
    }

    /// The same with the majority of the ranks' signs in place of their mean:
    /// [`Device::vote`](crate::Device::vote), of [`Sign::unit`](crate::Sign::unit) and Signum. Gradients lie in the
    /// host's memory.
    ///
    /// ```
    /// use gradwire::{Recipe, Sign};
    /// assert_eq!(Recipe::from(Sign::unit()).vote().to_string(), "sign:unit+vote");
    /// ```
    pub fn vote(mut self) -> Self {
        self.vote = true;
        self
    }

    /// The same with blocks of the gradient rotated before they are quantized, and the mean of the ranks rotated back.
    /// Tensors of one recipe are concatenated and rotated as one.
    ///
    /// Source: Suresh, Yu, Kumar and McMahan, "Distributed mean estimation with limited communication", ICML 2017,
    /// section 3; in blocks, by signs that all ranks draw alike: [`Rotation`]. An unbiased quantizer stays unbiased. No
    /// error feedback goes with it, since each step has another basis.
    ///
    /// With [`Rotation::own`] each rank draws its own signs. What each has sent is rotated back before it is added to
    /// the sum, in the order of the ranks, which takes a rotation per rank. The errors of ranks with equal gradients
    /// are then independent, and the mean of N ranks has 1/N of the squared error. With common signs a codec without
    /// draws keeps all of it.
    ///
    /// [`Eden`](crate::Eden) and [`Drive`](crate::Drive) are of rotated gradients. Their recipes bring the rotation of
    /// Vargaftik et al., with own signs and the bucket as its block. Another block than the bucket is refused. Set
    /// here, the rotation is as given, with common signs unless it is [`Rotation::own`]. In a text `rotate` beside
    /// these codecs says what they bring, and `rotate:common` that all ranks have the same signs. A rotation that is
    /// the one that the codec brings leaves with the codec, if [`Recipe::quantize`] sets another.
    ///
    /// ```
    /// use gradwire::{Eden, Qsgd, Recipe, Rotation};
    /// let rotated = Recipe::from(Qsgd::bits(4)).rotate(Rotation::block(512));
    /// assert_eq!(rotated.to_string(), "rotate:block=512+qsgd:bits=4");
    /// assert!(rotated.promise(1000)?.unbiased);
    ///
    /// let brought = Recipe::from(Eden::bits(4));
    /// assert_eq!(brought, "rotate+eden:bits=4".parse()?);
    /// assert_eq!(brought.clone().rotate(Rotation::block(8192)).to_string(), "rotate:common+eden:bits=4");
    /// assert!(brought.rotate(Rotation::block(1024)).check().is_err());
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn rotate(mut self, rotation: Rotation) -> Self {
        self.rotation = Some(rotation);
        self.settle();
        self
    }

    /// The rotation that runs: as asked for, or as the codec brings it.
    pub(crate) fn rotation(&self) -> Option<Rotation> {
        self.rotation.or_else(|| self.brought())
    }

    /// The rotation of a codec that is of rotated gradients.
    pub(super) fn brought(&self) -> Option<Rotation> {
        let bucket = self.quantize.rotated_bucket().filter(|_| self.select.is_none() && self.is_quantized());
        bucket.map(|bucket| Rotation::block(bucket).own())
    }

    /// Takes what the codec brings for what was asked for, so that equal recipes are equal.
    fn settle(&mut self) {
        if self.rotation == self.brought() {
            self.rotation = None;
        }
    }

    /// The same with the coefficients of blocks of the gradient in its place, and the gradient of the mean of the
    /// ranks' coefficients after the exchange. Tensors of one recipe are concatenated and transformed as one, so that
    /// `dct:block=64` and `topk:k=32,block=4096` have the same blocks. With [`Dct::tiles`] blocks are squares of rows
    /// and columns of each tensor's matrix.
    ///
    /// Source: Peng, Quesnelle and Kingma, "DeMo: Decoupled momentum optimization", 2024, algorithm 1. Its momentum m =
    /// beta m + lr g loses the sent values, transformed back. Here residual, momentum and estimates are of
    /// coefficients themselves, which is the same, since the transform is linear, and has one basis for ever: so a step
    /// takes one transform each way, and payload and residual add up as after any other codec, to the bit.
    /// DeMo is `dct:tiles+topk:k=32,block=4096,clamped+ef:beta=0.999,gamma=<lr>`, and the sign of the mean after it.
    /// Three things differ: of a side that 64 does not divide, theirs takes the largest divisor up to 64, and here what
    /// whole tiles leave comes after them, in blocks as it lies, since sides are powers of two ([`Dct::tiles`]); theirs
    /// sends half of the coefficients of 64 elements of a vector, which has a recipe of its own here
    /// ([`Policy::vectors`]), with squares of 8 x 8; and a
    /// coefficient that some ranks have sent has the mean over all of them, where theirs is over those that sent it.
    ///
    /// [`Policy::vectors`]: crate::Policy::vectors
    ///
    /// Without `tiles`, squares are of 4096 elements as they lie. That spares a copy of the gradient each way in the
    /// host's memory, and in a device's where the model has other recipes too.
    ///
    /// * **Clipping** ([`Recipe::clip`]) is of the gradient, before it is transformed.
    /// * **Non-finite values**: under [`NonFinite::Error`] the gradient is scanned before. A sum of a block
    ///   that overflows is refused under the number of the coefficient.
    /// * **Where**: on every backend, and of gradients in the host's memory or in a device's.
    ///
    /// ```
    /// use gradwire::{Dct, Recipe, TopK};
    /// let demo = Recipe::from(TopK::blocks(4096, 32)).dct(Dct::default().tiles()).feedback_weights(0.999, 1.0);
    /// assert_eq!(demo.to_string(), "dct:tiles+topk:k=32,block=4096+ef:beta=0.999");
    /// assert_eq!(demo, demo.to_string().parse()?);
    /// assert_eq!(demo.promise(1 << 20)?.delta, Some(32.0 / 4096.0));
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn dct(mut self, dct: Dct) -> Self {
        self.dct = Some(dct);
        self
    }

    /// The same with a selection that keeps more in the first steps: 1/4, 1/16, 1/64 and 1/256 of the entries, each for
    /// a quarter of `steps` steps, and never less than the part that was set. Early gradients change fast, and what
    /// waits in the residual is soon out of date.
    ///
    /// Source: Lin, Han, Mao, Wang and Dally, "Deep gradient compression", ICLR 2018, section 3.3. Their codec is
    /// `dgc:ratio=0.001,momentum=0.9,warmup=<steps>`, which is `topk:0.001,warmup=<steps>+momentum=0.9`; with
    /// [`Recipe::nesterov`] and [`Recipe::clip`], where `nesterov` and `clip=<norm>` follow.
    ///
    /// ```
    /// use gradwire::{Recipe, TopK};
    /// let recipe = Recipe::from(TopK::fraction(0.001)).momentum(0.9).warm_up(4000);
    /// assert_eq!(recipe, "dgc:ratio=0.001,warmup=4000".parse()?);
    /// let parts = [0, 999, 1000, 3000, 4000].map(|step| recipe.part_at(step));
    /// assert_eq!(parts, [0.25, 0.25, 0.0625, 0.00390625, 0.001].map(Some));
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn warm_up(mut self, steps: u64) -> Self {
        self.warm_up = steps;
        self
    }

    /// The part of the entries that is kept in a step, or wanted where a threshold is estimated; steps are counted from
    /// 0. `None` if nothing is selected, or not by a part.
    pub fn part_at(&self, step: u64) -> Option<f64> {
        let part = match self.select.as_ref()?.keep() {
            Keep::Fraction(part) | Keep::Estimate { part, .. } | Keep::PerSign(part) => *part,
            _ => return None,
        };
        // Quarters of the warm-up that have gone by, in 128 bits for any number of steps.
        let gone = (u128::from(step) * 4).checked_div(u128::from(self.warm_up)).unwrap_or(4);
        Some(if gone < 4 { part.max(0.25f64.powi(gone as i32 + 1)) } else { part })
    }

    /// The same with this policy for NaN and infinity. A [`Compressor`](crate::Compressor) skips a step that has one,
    /// and under [`NonFinite::Error`] the step fails.
    pub fn non_finite(mut self, policy: NonFinite) -> Self {
        self.non_finite = policy;
        self
    }

    /// The same with this algorithm between the ranks, which [`Compressor::exchange`](crate::Compressor::exchange)
    /// runs. Gradients lie in the host's memory unless it is [`Algorithm::Gather`].
    ///
    /// ```
    /// use gradwire::{Algorithm, Recipe, TopK};
    /// let tree = Recipe::from(TopK::fraction(0.01)).feedback().via(Algorithm::Tree);
    /// assert_eq!(tree.to_string(), "topk:0.01+ef+gtopk");
    /// ```
    pub fn via(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// How payloads go from rank to rank.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Which state is kept from step to step, and how.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Whether gradients go as they are, in f32.
    pub fn is_none(&self) -> bool {
        self.select.is_none() && self.is_quantized() && self.quantize == Quantize::Exact
    }

    /// Whether it sends neither factors nor entries that the seed draws.
    fn is_quantized(&self) -> bool {
        self.factors.is_none() && self.random.is_none()
    }

    /// Whether the messages can be summed on the way, by an all-reduce. Factors can, unless they go through a
    /// quantizer.
    pub fn is_linear(&self) -> bool {
        self.is_none() || self.factors.is_some() && self.quantize == Quantize::Exact || self.random.is_some()
    }

    /// Takes over a quantizer; its policy for NaN becomes the recipe's, and so does its packing, which is none if it
    /// says nothing of it: that of the quantizer before is of other codes.
    pub(super) fn set_quantize(&mut self, quantize: Quantize) {
        let (alone, policy, entropy) = quantize.alone();
        self.quantize = alone;
        self.entropy = entropy;
        if policy == NonFinite::Error {
            self.non_finite = policy;
        }
    }

    /// Refuses stages that do not go together, and settings that no tensor admits.
    ///
    /// # Errors
    /// [`RecipeError::Stages`], [`RecipeError::Momentum`], [`RecipeError::Factor`], [`RecipeError::Nothing`]; what the
    /// codec of a stage refuses.
    pub fn check(&self) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        let stages = |what, remedy| Err(RecipeError::Stages { what, remedy }.into());
        match (&self.select, self.quantize, &self.factors) {
            (Some(_), _, Some(_)) => {
                return stages("top-k and PowerSGD do not go together", "each chooses what is sent: leave out one");
            }
            (select, quantize, factors)
                if self.random.is_some() && (select.is_some() || quantize != Quantize::Exact || factors.is_some()) =>
            {
                let what = "random-k goes with no other selection, quantizer or factors";
                return stages(what, "its values are summed on the way, in f32: leave out the others");
            }
            (None, Quantize::Round(_), _) => {
                return stages(
                    "f16 and bf16 round the values of top-k, and there is none",
                    "add topk, or use float:f16 or float:bf16",
                );
            }
            _ => {}
        }
        if !self.quantize.takes(self.entropy) {
            return match self.entropy {
                Entropy::Base3 => stages(
                    "base 3 is of ternary codes, and of those of QSGD with 2 bits",
                    "add ternary or qsgd:bits=2, or leave out base3",
                ),
                _ => stages(
                    "Elias codes and places are of the levels of QSGD, ternary codes and integers",
                    "add qsgd, ternary, float:int8 or float:int16, or leave out elias, delta and sparse",
                ),
            };
        }
        let is_whole = self.select.is_none() && self.factors.is_none();
        if self.vote && !(is_whole && self.quantize.is_sign_alone()) {
            return stages("a vote is of signs that all count the same", "use sign:unit or signum, or leave out vote");
        }
        if self.is_none() && self.memory != self.memory.of_uncompressed() {
            let what = "what is sent whole leaves no residual, and nothing to select";
            return stages(what, "leave out ef, ef21, diana and unmasked");
        }
        if self.memory.unmasked && (self.select.is_none() || self.memory.momentum.is_none()) {
            let what = "unmasked is of the momentum of a selection, and there is none";
            return stages(what, "add topk and momentum=<factor>, or leave out unmasked");
        }
        if let Some(got) = self.clip {
            if !(got > 0.0 && got.is_finite()) {
                return Err(RecipeError::Factor { what: "clip", got, allowed: "above 0" }.into());
            }
            if self.is_none() {
                let what = "what is sent whole keeps nothing that grows, and is not clipped";
                return stages(what, "leave out clip, or name a codec");
            }
        }
        if let Some(got) = self.peers {
            if !(got > 0.0 && got.is_finite()) {
                return Err(RecipeError::Factor { what: "peers:norm", got, allowed: "above 0" }.into());
            }
            let summed = self.factors.is_some() || self.random.is_some() || self.vote;
            if summed || self.algorithm != Algorithm::Gather {
                let what =
                    "a bound on what a rank sends is of payloads that every rank gets, and these are summed on the way";
                return stages(what, "leave out powersgd, randomk, vote, twophase and gtopk; or leave out peers");
            }
        }
        if self.quantize.is_of_rotated() {
            if !is_whole || self.dct.is_some() {
                let what = "eden and drive are of a rotated gradient, which entries, factors and coefficients are not";
                return stages(what, "leave out topk, powersgd and dct, or use another quantizer");
            }
            if self.quantize.rotated_bucket().is_none() {
                let what = "eden and drive rotate each bucket, and a whole tensor is too long for a block";
                return stages(what, "give eden and drive buckets of a power of two from 32 to 8192");
            }
            if self.rotation.is_some_and(|rotation| Some(rotation.elements()) != self.quantize.rotated_bucket()) {
                let what = "each bucket of eden and drive is one block of the rotation";
                return stages(what, "leave out the rotation's block, or set the bucket to the same number");
            }
            if self.memory.is_formed() {
                let what = "eden and drive are rotated to another basis in each step, and a residual stays in one";
                return stages(what, "leave out ef21, diana, beta and gamma, or use sign or qsgd");
            }
        } else if let Some(rotation) = self.rotation {
            rotation.check()?;
            if self.dense().is_none() || self.vote {
                let what = "a rotation stands before a quantizer of whole gradients, and no vote";
                return stages(what, "add qsgd or another quantizer, or leave out rotate");
            }
            if self.memory.feedback || self.memory.shift.is_some() {
                let what = "a rotation has another basis in each step, and a residual or an estimate would keep one";
                return stages(what, "say noef, or leave out rotate");
            }
        }
        if let Some(dct) = self.dct {
            dct.check()?;
            if self.is_none() || self.factors.is_some() || self.rotation().is_some() || self.vote {
                let what = "a cosine transform stands before a quantizer, a selection or random-k, and nothing else";
                return stages(what, "add topk or qsgd, and leave out powersgd, rotate and vote; or leave out dct");
            }
        }
        if let Some(codec) = self.random {
            codec.check()?;
            let Memory { feedback, momentum, shift, .. } = self.memory;
            if momentum.is_some() || shift.is_some() || self.memory.is_formed() {
                let what = "random-k has error feedback as it is, or no memory";
                return stages(what, "leave out momentum, ef21, diana, beta and gamma");
            }
            if feedback && codec.is_unbiased() {
                let what = "unbiased random-k multiplies its error by n/k";
                return stages(what, "leave out unbiased, or say noef");
            }
        }
        self.check_algorithm()?;
        self.memory.check(self.factors.is_some())?;
        if self.memory.momentum.is_some() && !self.memory.feedback && (self.select.is_some() || self.factors.is_some())
        {
            return stages("momentum keeps what a selection or factors do not send", "leave out noef, or the momentum");
        }
        if self.warm_up > 0 && self.part_at(0).is_none() {
            return stages("a warm-up is of a part of the entries", "keep a part, as topk:0.001, or leave out warmup");
        }
        if let Some(select) = self.select.as_ref().filter(|select| select.keeps_nothing()) {
            return Err(RecipeError::Nothing { what: words_of(select) }.into());
        }
        match (&self.factors, self.dense(), self.sparse()) {
            (Some(codec), ..) => {
                codec.table(&[])?;
                self.of_factors().map_or(Ok(()), |quantizer| quantizer.plan(0).map(drop))
            }
            (_, Some(dense), _) => dense.plan(0).map(drop),
            (.., Some(sparse)) => sparse.check_settings(),
            _ => Ok(()),
        }
    }

    /// Refuses an algorithm that does not go with the stages.
    fn check_algorithm(&self) -> Result<(), Error> {
        let stages = |what, remedy| Err(RecipeError::Stages { what, remedy }.into());
        let Memory { feedback, momentum, .. } = self.memory;
        match self.algorithm {
            Algorithm::Gather => Ok(()),
            Algorithm::Tree if self.select.is_none() => {
                stages("the tree of gtopk merges selections, and there is none", "add topk, or leave out gtopk")
            }
            Algorithm::Tree if self.select.as_ref().is_some_and(|s| matches!(s.keep(), Keep::Estimate { .. })) => {
                let what = "the tree of gtopk selects from sums anew, and no estimate is made there";
                stages(what, "leave out estimate, or gtopk")
            }
            Algorithm::Tree if self.select.as_ref().is_some_and(|s| matches!(s.keep(), Keep::PerSign(_))) => {
                stages("the tree of gtopk selects from sums by magnitude alone", "leave out persign, or gtopk")
            }
            Algorithm::Tree if !feedback || momentum.is_some() || self.memory.is_formed() => {
                let what =
                    "the tree of gtopk keeps in the residual what a merge drops, and goes with error feedback as it is";
                stages(what, "add ef, and leave out noef, momentum, beta, gamma, ef21 and diana")
            }
            Algorithm::Tree => Ok(()),
            Algorithm::TwoPhase { from: 0 } => {
                stages("two phases from 0 ranks on are those from 1 on", "say from=1, or twophase alone")
            }
            Algorithm::TwoPhase { .. } if self.dense().is_none() || self.vote || self.rotation().is_some() => {
                let what = "two phases cut a quantized gradient at its buckets, and take no vote and no rotation";
                stages(what, "use qsgd or sign, and leave out vote, rotate, eden and drive; or leave out twophase")
            }
            Algorithm::TwoPhase { .. } if self.memory.is_formed() => {
                let what = "two phases keep residuals as they are at worker and owner";
                stages(what, "leave out beta, gamma, ef21 and diana, or twophase")
            }
            Algorithm::TwoPhase { .. } => Ok(()),
        }
    }

    /// What becomes of a tensor that goes uncompressed beside tensors of this recipe: `none`, with the same momentum.
    pub(crate) fn uncompressed(&self) -> Self {
        Self { memory: self.memory.of_uncompressed(), peers: self.peers, ..Self::none() }.non_finite(self.non_finite)
    }

    /// The policy for NaN and infinity. What a plane is formed of must be finite, or it would be lost for ever.
    pub(crate) fn policy(&self) -> NonFinite {
        if self.memory.is_formed() { NonFinite::Error } else { self.non_finite }
    }

    /// The quantizer of whole tensors, if the recipe has no selection and no factors.
    pub(crate) fn dense(&self) -> Option<Dense<'_>> {
        let whole = self.select.is_none() && self.is_quantized() && !self.is_none();
        whole.then_some(Dense(self))
    }

    /// The selection, with the quantizer of its values and the recipe's policy for NaN: a codec that
    /// [`Device::encode_sparse`](crate::Device::encode_sparse) takes. `None` if nothing is selected, or if the
    /// gradient is transformed before. Memory and clipping are a compressor's, and left out.
    ///
    /// ```
    /// use gradwire::{Device, Recipe, Seed};
    /// let recipe: Recipe = "topk:0.01+qsgd:bits=4".parse()?;
    /// let codec = recipe.selection().expect("it selects");
    /// let payload = Device::cpu().encode_sparse(&codec, &[0.5f32; 1000], Seed::new(1))?;
    /// assert_eq!(payload.indices().len(), 10);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn selection(&self) -> Option<TopK> {
        if self.dct.is_some() { None } else { self.sparse() }
    }

    /// The same, of coefficients too.
    pub(crate) fn sparse(&self) -> Option<TopK> {
        let select = self.select.clone()?.non_finite(self.policy());
        Some(self.quantize.behind(select, self.entropy))
    }

    /// The quantizer of every element, with the recipe's policy for NaN and packing of codes: a codec that
    /// [`Device::encode`](crate::Device::encode) takes. `None` if entries are selected, if it is of factors,
    /// if the gradient is turned before, as for EDEN and DRIVE, if ranks vote, or if there is no quantizer.
    /// Memory and clipping are a compressor's, and left out.
    ///
    /// ```
    /// use gradwire::{Device, Recipe, Seed};
    /// let recipe: Recipe = "qsgd:bits=4,bucket=64+elias".parse()?;
    /// let codec = recipe.quantizer().expect("it quantizes");
    /// let payload = Device::cpu().encode(&codec, &[0.5f32; 1000], Seed::new(1))?;
    /// assert!(payload.header().is_packed());
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn quantizer(&self) -> Option<Quantizer> {
        match self.quantize {
            Quantize::By(codec)
                if self.select.is_none() && self.factors.is_none() && !self.is_turned() && !self.vote =>
            {
                Some(codec.with(self.policy(), self.entropy))
            }
            _ => None,
        }
    }

    /// Whether codecs see something else than the gradient.
    fn is_turned(&self) -> bool {
        self.rotation().is_some() || self.dct.is_some()
    }

    /// The same in a step of a warm-up.
    pub(crate) fn sparse_at(&self, step: u64) -> Option<TopK> {
        let select = self.select.as_ref()?;
        let keep = |part| match select.keep() {
            Keep::Estimate { by, .. } => Keep::Estimate { part, by: *by },
            Keep::PerSign(_) => Keep::PerSign(part),
            _ => Keep::Fraction(part),
        };
        let now = self.part_at(step).map(|part| TopK::keeping(keep(part), select.is_clamped()));
        Self { select: Some(now.unwrap_or_else(|| select.clone())), ..self.clone() }.sparse()
    }

    /// PowerSGD with the recipe's memory and policy.
    pub(crate) fn low_rank(&self) -> Option<PowerSgd> {
        let codec = self.factors?.non_finite(self.policy());
        Some(codec.with_feedback(self.memory.feedback))
    }

    /// The quantizer of PowerSGD's factors, if they go through one.
    pub(crate) fn of_factors(&self) -> Option<OfFactors<'_>> {
        (self.factors.is_some() && self.quantize != Quantize::Exact).then_some(OfFactors(self))
    }
}

/// A recipe that quantizes factors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfFactors<'r>(&'r Recipe);

impl OfFactors<'_> {
    /// How a factor of `n` entries is encoded. The residual is of matrices, and no codec's. What feedback refuses is
    /// refused all the same: what a factor does not send, the residual does not send again if it is as large.
    pub(crate) fn plan(self, n: usize) -> Result<EncodePlan, Error> {
        // Non-finite values are scanned for in the matrix. A factor that overflows is sent as NaN, and refused or told
        // by every rank alike.
        let Some(plan) = self.0.quantize.plan(n, NonFinite::Propagate) else {
            let (what, remedy) = ("there is no quantizer of the factors", "name one");
            return Err(RecipeError::Stages { what, remedy }.into());
        };
        let plan = plan?;
        if self.0.memory.feedback { plan.with_feedback().map(|_| plan) } else { Ok(plan) }
    }
}

impl crate::codec::Codec for OfFactors<'_> {
    fn plan(&self, n: usize, _: Dtype) -> Result<EncodePlan, Error> {
        (*self).plan(n)
    }
}

/// A recipe that quantizes every element of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense<'r>(&'r Recipe);

impl Dense<'_> {
    /// How a tensor of `n` elements is encoded, memory included.
    pub(crate) fn plan(self, n: usize) -> Result<EncodePlan, Error> {
        let Some(plan) = self.0.quantize.plan(n, self.0.policy()) else {
            let (what, remedy) = ("there is no quantizer", "name one");
            return Err(RecipeError::Stages { what, remedy }.into());
        };
        let plan = plan?;
        match (self.0.memory.feedback, self.0.memory.is_formed()) {
            (true, false) => plan.with_feedback(),
            // The codec reads the formed values, and no residual.
            (true, true) => self.0.memory.check_feedback(&plan).map(|()| plan),
            (false, _) => Ok(plan),
        }
    }
}

impl crate::codec::Codec for Dense<'_> {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        let plan = (*self).plan(n)?;
        let header = crate::wire::Header { dtype, ..*plan.header() };
        Ok(EncodePlan { header, ..plan })
    }
}

impl From<TopK> for Recipe {
    /// A quantizer of the values becomes a stage of its own. Without error feedback.
    fn from(codec: TopK) -> Self {
        let (select, values, policy) = codec.into_stages();
        let quantize = match values {
            Values::Exact => Quantize::Exact,
            Values::As(dtype) => Quantize::Round(dtype),
            Values::By(codec) => Quantize::By(codec),
        };
        let recipe = Self { select: Some(select), ..Self::none() }.quantize(quantize);
        if policy == NonFinite::Error { recipe.non_finite(policy) } else { recipe }
    }
}

impl From<RandomK> for Recipe {
    /// With error feedback, unless it is unbiased.
    fn from(codec: RandomK) -> Self {
        let recipe = Self { random: Some(codec), ..Self::none() };
        if codec.is_unbiased() { recipe } else { recipe.feedback() }
    }
}

impl From<PowerSgd> for Recipe {
    /// With error feedback, unless the codec says without.
    fn from(codec: PowerSgd) -> Self {
        let non_finite = if codec.is_guarded() { NonFinite::Error } else { NonFinite::Propagate };
        let recipe = Self { factors: Some(codec.plain()), non_finite, ..Self::none() };
        if codec.feedback() { recipe.feedback() } else { recipe }
    }
}

impl TryFrom<String> for Recipe {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl TryFrom<&String> for Recipe {
    type Error = Error;

    fn try_from(text: &String) -> Result<Self, Error> {
        text.parse()
    }
}

impl TryFrom<&str> for Recipe {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        text.parse()
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Recipe {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Recipe {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
