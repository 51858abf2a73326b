//! The tensors of a model that share a recipe.

use std::ops::Range;

use gradwire_kernels::arith::float::accumulate;

use super::factors::Factors;
use super::failure::not_finite;
use super::frame::Writer;
use super::owner::Owner;
use super::planes::{Held, Sides};
use super::policy::Tensor;
use crate::backend::cpu::Cpu;
use crate::codec::powersgd::Matrix;
use crate::codec::topk::{Keep, Segment, TopK};
use crate::device::Device;
use crate::embed::HostSlice;
use crate::entropy::Packing;
use crate::error::{Error, ExchangeError, RecipeError};
use crate::gradient::{Dtype, Gradient};
use crate::low_rank::LowRankState;
use crate::model::{Layout, ModelPlan, TensorSpan};
use crate::plan::{DecodeMode, EncodePlan, Limits, NonFinite};
use crate::random::RandomK;
use crate::recipe::{Algorithm, Formed, Recipe};
use crate::rotation::{Rotation, Tiles};
use crate::seed::Seed;
use crate::sparse::SparsePayload;
use crate::view::PayloadView;
use crate::wire::{Entropy, PayloadError};
use crate::words::{self, zeros};

/// What memory is for.
const VALUES: &str = "values of a step";
const SENT: &str = "the numbers of the entries that were sent";

/// Tensors that share a recipe, which is not none.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) recipe: Recipe,
    /// Their numbers in the model, rising.
    pub(super) tensors: Vec<usize>,
    /// Where they lie in the gradient.
    pub(super) spans: Vec<TensorSpan>,
    /// The number of its first tensor where random draws are concerned.
    first: u32,
    /// How what is encoded is formed, if it is not the gradient or the momentum.
    pub(super) formed: Option<Formed>,
    /// The part of the entries that the selection keeps now, if it keeps a part.
    pub(super) part: Option<f64>,
    pub(super) method: Method,
    /// The algorithm of this step.
    pub(super) via: Algorithm,
    /// The norm that this rank's gradient is clipped to in this step.
    pub(super) limit: Option<f64>,
    /// What this rank keeps of sums that it quantized.
    pub(super) owner: Owner,
    /// The order in which its elements are transformed by cosines, if it is not the one in which they lie.
    pub(super) order: Option<Tiles>,
}

#[derive(Clone, Debug)]
pub(super) enum Method {
    /// Every element is quantized.
    Dense { plan: ModelPlan, limits: Limits },
    /// Entries are selected, from all tensors at once: from the whole gradient, or from these tensors packed one after
    /// another.
    Sparse { codec: TopK, packed: bool, elements: usize },
    /// These tensors are concatenated, rotated as one, and then quantized.
    Rotated { rotation: Rotation, plan: EncodePlan },
    /// Factors, and how they are quantized, if they are.
    LowRank { state: LowRankState, packed: bool, through: Option<Box<Factors>> },
    /// Entries that the seed draws, of these tensors, concatenated.
    Random { codec: RandomK },
}

impl Part {
    /// `alone` where the model's other tensors all go uncompressed. `first` is the number of its first tensor in the
    /// draws.
    pub(super) fn new(
        recipe: Recipe,
        tensors: Vec<usize>,
        model: &[Tensor],
        layout: &Layout,
        alone: bool,
        first: u32,
        run: u64,
    ) -> Result<Self, Error> {
        let spans: Vec<TensorSpan> = tensors.iter().map(|index| layout.spans()[*index]).collect();
        let longest = spans.iter().map(|span| span.elements).max().unwrap_or(0);
        let formed = match recipe.memory().is_formed() {
            true => recipe.memory().formed(&recipe.promise(longest as usize)?)?,
            false => None,
        };
        let part = recipe.part_at(0);
        let method = if let Some(codec) = recipe.low_rank() {
            let matrices = matrices(model, &tensors, alone);
            let state = codec.state(&matrices, Seed::new(run).tensor(first))?;
            let number = |index: usize| if alone { index } else { tensors[index] };
            let through = Factors::new(&recipe, &state.table, number, &Limits::NONE)?;
            Method::LowRank { state, packed: !alone, through: through.map(Box::new) }
        } else if let (Some(rotation), Some(dense)) = (recipe.rotation(), recipe.dense()) {
            let elements = rotation.rotated_len(spans.iter().map(|span| span.elements).sum());
            // What is not finite is looked for before it is rotated.
            let plan = EncodePlan { non_finite: NonFinite::Propagate, ..dense.plan(elements as usize)? };
            Method::Rotated { rotation, plan }
        } else if let Some(codec) = recipe.random {
            codec.entries(spans.iter().map(|span| span.elements).sum())?;
            Method::Random { codec }
        } else if let Some(codec) = recipe.sparse_at(0) {
            let covered = spans.iter().map(|span| span.elements).sum::<u64>() == layout.elements();
            let packed = !alone || !covered && segments(&codec, &spans, layout.elements(), true).is_none();
            let elements = if packed { spans.iter().map(|span| span.elements).sum() } else { layout.elements() };
            let codec = of_spans(&codec, &spans, packed, elements);
            check(&codec, elements, &recipe)?;
            let quarters = (1..=4).map(|quarter| (u128::from(recipe.warm_up) * quarter).div_ceil(4) as u64);
            for later in quarters.filter_map(|step| recipe.sparse_at(step)) {
                check(&of_spans(&later, &spans, packed, elements), elements, &recipe)?;
            }
            Method::Sparse { codec, packed, elements: elements as usize }
        } else {
            let limits = Limits::NONE;
            Method::Dense { plan: dense(&recipe, &spans, &limits)?, limits }
        };
        let (via, owner) = (Algorithm::Gather, Owner::default());
        let order = recipe.dct.map(|dct| dct.order(&matrices(model, &tensors, false))).transpose()?.flatten();
        Ok(Self { recipe, tensors, spans, first, formed, part, method, via, limit: None, owner, order })
    }

    /// Makes the plans anew if they were made for another device's limits, and refuses what does not fit them,
    /// before the other ranks wait for this one.
    pub(super) fn fit(&mut self, to: &Limits) -> Result<(), Error> {
        if let Method::Sparse { codec, elements, .. } = &self.method
            && self.recipe.entropy != Entropy::None
        {
            let plan = codec.plan(*elements, Dtype::F32, self.recipe.memory().adds_residual())?;
            let values = plan.quantizer(plan.most() as usize, false)?;
            values.map_or(Ok(()), |values| Packing::new(values.header(), values.entropy(), to).map(drop))?;
        }
        if let Method::Dense { plan, limits } = &mut self.method
            && limits != to
        {
            *plan = dense(&self.recipe, &self.spans, to)?;
            *limits = *to;
        }
        if let Method::LowRank { through: Some(through), .. } = &mut self.method {
            through.fit(&self.recipe, to)?;
        }
        Ok(())
    }

    /// Makes the selection that of a step of the warm-up, and says whether it is another one.
    pub(super) fn warm_up(&mut self, step: u64) -> Result<bool, Error> {
        let now = self.recipe.part_at(step);
        if now == self.part {
            return Ok(false);
        }
        if let (Method::Sparse { codec, packed, elements }, Some(next)) =
            (&mut self.method, self.recipe.sparse_at(step))
        {
            let next = of_spans(&next, &self.spans, *packed, *elements as u64);
            check(&next, *elements as u64, &self.recipe)?;
            *codec = next;
        }
        self.part = now;
        Ok(true)
    }

    /// The algorithm for this number of ranks.
    pub(super) fn algorithm(&self, ranks: u32) -> Algorithm {
        match self.recipe.algorithm() {
            Algorithm::TwoPhase { from } if ranks < from => Algorithm::Gather,
            other => other,
        }
    }

    /// The plane in which what is encoded is formed, if it is.
    pub(super) fn forms(&self) -> Option<Held> {
        self.formed.map(|formed| if formed.starts_over { Held::Shift } else { Held::Residual })
    }

    /// Where its tensors lie.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + Clone {
        self.spans.iter().map(|span| span.offset as usize..span.end() as usize)
    }

    /// Writes the payloads of this rank, and the residual after them: what they do not hold.
    pub(super) fn encode(
        &self,
        device: &Device,
        input: &[f32],
        residual: &mut Sides<'_>,
        seed: Seed,
        message: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let seed = self.seed_of(seed);
        let feedback = self.recipe.memory().adds_residual();
        match &self.method {
            Method::Dense { plan, .. } => {
                let elements = plan.layout().elements() as usize;
                let Sides { before, behind } = residual.part(if feedback { 0..elements } else { 0..0 });
                // What lies between these tensors is other parts', which may have written theirs.
                let own = parts_of(behind, self.ranges().filter(|_| feedback));
                let (gradient, own) = (Gradient::F32(&input[..elements]), HostSlice::floats_apart(before, own));
                let lengths = plan.tensors().iter().map(EncodePlan::payload_bytes);
                if self.recipe.entropy == Entropy::None {
                    device.encode_model_into(plan, gradient, own, seed, message.payloads(lengths)?)?;
                } else {
                    for payload in device.encode_model_apart(plan, gradient, own, seed)? {
                        message.append(device.packed(payload, self.recipe.entropy)?.as_bytes())?;
                    }
                }
            }
            Method::Rotated { rotation, plan } => {
                if self.recipe.non_finite == NonFinite::Error {
                    self.refuse_not_finite(input)?;
                }
                let rotated = device.rotate(*rotation, &self.pack(input)?, seed)?;
                let payload = device.encode_plan(plan, Gradient::F32(&rotated), &mut [], seed)?;
                message.append(device.packed(payload, self.recipe.entropy)?.as_bytes())?;
            }
            Method::Sparse { codec, packed, .. } => {
                let packed_input = if *packed { self.pack(input)? } else { Vec::new() };
                let input = if *packed { &packed_input } else { input };
                let payload = match (feedback, *packed) {
                    (false, _) => device.encode_sparse(codec, input, seed),
                    (true, false) => {
                        let (before, behind) = (&*residual.before, &mut *residual.behind);
                        let payload = device.encode_sums(codec, Gradient::F32(input), before, behind, seed);
                        // What lies between the tensors goes whole, by another way.
                        gaps(self.ranges(), input.len()).for_each(|gap| residual.behind[gap].fill(0.0));
                        payload
                    }
                    (true, true) => {
                        let mut own = self.pack(residual.before)?;
                        let payload = device.encode_sparse_with_feedback(codec, input, &mut own, seed);
                        self.unpack(&own, residual.behind);
                        payload
                    }
                };
                let payload = payload.map_err(|error| if *packed { self.unpacked(error) } else { error })?;
                message.append(payload.as_bytes())?;
            }
            Method::LowRank { .. } | Method::Random { .. } => {}
        }
        Ok(())
    }

    /// Whether a mean that is not finite fails or skips the step: with `finite`, and of estimates, which it would spoil
    /// for good. Factors and random entries are finite if their sums are.
    pub(super) fn expects_finite_mean(&self) -> bool {
        let gathered = !matches!(self.method, Method::LowRank { .. } | Method::Random { .. });
        gathered && self.recipe.policy() == NonFinite::Error
    }

    /// Refuses a payload of a rank that is not finite.
    pub(super) fn expect_finite(&self, rank: u32, finite: bool) -> Result<(), Error> {
        if finite { Ok(()) } else { Err(not_finite(rank, self.recipe.non_finite).into()) }
    }

    /// What the other ranks are told of an error of this rank: without `finite`, a gradient that is not finite skips the
    /// step.
    pub(super) fn told(&self, error: Error, rank: u32) -> Error {
        match error {
            Error::NotFinite { .. } if self.recipe.non_finite == NonFinite::Propagate => {
                ExchangeError::Skipped { rank }.into()
            }
            other => other,
        }
    }

    /// Refuses what is not finite of its tensors.
    pub(super) fn refuse_not_finite(&self, input: &[f32]) -> Result<(), Error> {
        let wrong = self.ranges().flatten().find(|index| !input[*index].is_finite());
        wrong.map_or(Ok(()), |index| Err(Error::NotFinite { index: index as u64 }))
    }

    /// Refuses what is not finite of a gradient that goes as factors, with the residual, before the first of them is
    /// summed: the other ranks would wait.
    pub(super) fn refuse_of_factors(&mut self, input: &[f32]) -> Result<(), Error> {
        if self.recipe.non_finite != NonFinite::Error {
            return Ok(());
        }
        let packed = match &self.method {
            Method::Random { .. } => return self.refuse_not_finite(input),
            Method::LowRank { packed, .. } => packed.then(|| self.pack(input)).transpose()?,
            Method::Dense { .. } | Method::Sparse { .. } | Method::Rotated { .. } => return Ok(()),
        };
        let Method::LowRank { state, .. } = &mut self.method else { return Ok(()) };
        let found = Cpu::default().refused_by_low_rank(state, packed.as_deref().unwrap_or(input));
        let whole = packed.is_none();
        match found?.map(|index| Error::NotFinite { index }) {
            Some(error) => Err(if whole { error } else { self.unpacked(error) }),
            None => Ok(()),
        }
    }

    /// An element's number in the gradient, where an error has its number among the tensors one after another.
    pub(super) fn unpacked(&self, error: Error) -> Error {
        let Error::NotFinite { index } = error else { return error };
        let mut before = 0;
        for span in &self.spans {
            if index < before + span.elements {
                return Error::NotFinite { index: span.offset + index - before };
            }
            before += span.elements;
        }
        error
    }

    /// The number of one of its tensors in the draws.
    pub(super) fn number(&self, tensor: usize) -> u32 {
        self.first.wrapping_add(tensor as u32)
    }

    /// The seed of its draws, of that of a step.
    pub(super) fn seed_of(&self, step: Seed) -> Seed {
        step.tensor(self.first)
    }

    /// The seed of its factors.
    pub(super) fn seed(&self, run: u64) -> Seed {
        Seed::new(run).tensor(self.first)
    }

    /// Payloads of a rank that are gathered.
    pub(super) fn payloads(&self) -> usize {
        match &self.method {
            _ if self.via != Algorithm::Gather => 0,
            Method::Dense { plan, .. } => plan.tensors().len(),
            Method::Sparse { .. } | Method::Rotated { .. } => 1,
            Method::LowRank { .. } | Method::Random { .. } => 0,
        }
    }

    /// Whether its factors go through a quantizer, and are gathered one after another.
    pub(super) fn gathers_factors(&self) -> bool {
        matches!(&self.method, Method::LowRank { through: Some(through), .. } if !through.tensors.is_empty())
    }

    /// Checks the payloads of all ranks.
    pub(super) fn receive<'m>(&self, ranks: &[&[&'m [u8]]]) -> Result<Received<'m>, Error> {
        let differs = |rank: usize, tensor, what| self.differs(rank as u32, tensor, what);
        let damaged = |rank: usize, tensor, source| self.damaged(rank as u32, tensor, source);
        match &self.method {
            _ if self.via != Algorithm::Gather => Ok(Received::Nothing),
            Method::Dense { plan, .. } => {
                let mut all = Vec::with_capacity(ranks.len());
                for (rank, payloads) in ranks.iter().enumerate() {
                    let mut views = Vec::with_capacity(payloads.len());
                    for (index, (plan, bytes)) in plan.tensors().iter().zip(*payloads).enumerate() {
                        let view = PayloadView::from_bytes(bytes).map_err(|source| damaged(rank, index, source))?;
                        if let Some(what) = plan.header().difference(view.header()) {
                            return Err(differs(rank, index, what));
                        }
                        self.expect_finite(rank as u32, view.is_finite())?;
                        views.push(view);
                    }
                    all.push(views);
                }
                Ok(Received::Dense(all))
            }
            Method::Rotated { plan, .. } => {
                let mut all = Vec::with_capacity(ranks.len());
                for (rank, payloads) in ranks.iter().enumerate() {
                    for bytes in *payloads {
                        let view = PayloadView::from_bytes(bytes).map_err(|source| damaged(rank, 0, source))?;
                        if let Some(what) = plan.header().difference(view.header()) {
                            return Err(differs(rank, 0, what));
                        }
                        self.expect_finite(rank as u32, view.is_finite())?;
                        all.push(view);
                    }
                }
                Ok(Received::Rotated(all))
            }
            Method::Sparse { elements, .. } => {
                let mut all = Vec::with_capacity(ranks.len());
                for (rank, payloads) in ranks.iter().enumerate() {
                    for bytes in *payloads {
                        all.push(self.entries(rank as u32, bytes, *elements as u64)?);
                    }
                }
                Ok(Received::Sparse(all))
            }
            Method::LowRank { .. } | Method::Random { .. } => Ok(Received::Nothing),
        }
    }

    /// The entries that a rank sent, checked.
    pub(super) fn entries(&self, rank: u32, bytes: &[u8], elements: u64) -> Result<SparsePayload, Error> {
        let payload = SparsePayload::from_bytes_of(bytes, elements).map_err(|source| match source {
            PayloadError::Elements { .. } => self.differs(rank, 0, "length"),
            source => self.damaged(rank, 0, source),
        })?;
        self.expect_finite(rank, payload.is_finite())?;
        Ok(payload)
    }

    /// The error of a payload that a rank sent, of a tensor among the part's own. A lack of memory is no fault of the
    /// rank.
    pub(super) fn damaged(&self, rank: u32, tensor: usize, source: PayloadError) -> Error {
        if let PayloadError::Memory { .. } = source {
            return source.into();
        }
        ExchangeError::Damaged { rank, tensor: self.place_of(tensor), source }.into()
    }

    /// The error of a payload that does not fit.
    pub(super) fn differs(&self, rank: u32, tensor: usize, what: &'static str) -> Error {
        ExchangeError::Payload { rank, tensor: self.place_of(tensor), what }.into()
    }

    /// The place in the model of a tensor among its own.
    fn place_of(&self, tensor: usize) -> u64 {
        self.tensors.get(tensor).copied().unwrap_or(0) as u64
    }

    /// Writes the mean over the ranks into the gradient.
    pub(super) fn decode(
        &self,
        device: &Device,
        received: &Received<'_>,
        weight: f32,
        step: Seed,
        gradient: &mut [f32],
    ) -> Result<(), Error> {
        match (&self.method, received) {
            (Method::Rotated { rotation, plan }, Received::Rotated(payloads)) if rotation.is_own() => {
                let (mut mean, mut sent) = (Vec::new(), zeros(plan.len() as u64, VALUES)?);
                for (rank, payload) in (0..).zip(payloads) {
                    device.decode_sum(&[*payload], weight, &mut sent)?;
                    let own = device.unrotate(*rotation, &sent, self.elements(), self.seed_of(step).worker(rank))?;
                    if rank == 0 {
                        mean = own;
                    } else {
                        mean.iter_mut().zip(own).for_each(|(mean, own)| *mean = accumulate(*mean, 1.0, own));
                    }
                }
                self.unpack(&mean, gradient);
                Ok(())
            }
            (Method::Rotated { rotation, plan }, Received::Rotated(payloads)) => {
                let mut sum = zeros(plan.len() as u64, VALUES)?;
                device.decode_sum(payloads, weight, &mut sum)?;
                let mean = device.unrotate(*rotation, &sum, self.elements(), self.seed_of(step))?;
                self.unpack(&mean, gradient);
                Ok(())
            }
            (Method::Dense { .. }, Received::Dense(ranks)) if self.recipe.vote => {
                for (index, range) in self.ranges().enumerate() {
                    let votes: Vec<_> = ranks.iter().map(|payloads| payloads[index]).collect();
                    device.vote(&votes, &mut gradient[range])?;
                }
                Ok(())
            }
            (Method::Dense { plan, .. }, Received::Dense(ranks)) => {
                let ranks: Vec<&[PayloadView<'_>]> = ranks.iter().map(Vec::as_slice).collect();
                let output = &mut gradient[..plan.layout().elements() as usize];
                device.decode_model(plan, DecodeMode::Sum(weight), &ranks, output)
            }
            (Method::Sparse { packed: false, .. }, Received::Sparse(payloads)) => {
                device.decode_sparse_sum(payloads, weight, gradient)
            }
            (Method::Sparse { packed: true, .. }, Received::Sparse(payloads)) => {
                let mut output = zeros(self.elements() as u64, VALUES)?;
                device.decode_sparse_sum(payloads, weight, &mut output)?;
                self.unpack(&output, gradient);
                Ok(())
            }
            (method, received) => self.unread(method, received),
        }
    }

    /// Decodes what a rank sent on the CPU, into `values`, and returns where in them its values are.
    pub(super) fn values_of(
        &self,
        received: &Received<'_>,
        rank: usize,
        values: &mut Vec<f32>,
    ) -> Result<Vec<Range<usize>>, Error> {
        let device = Device::cpu();
        match (&self.method, received) {
            (Method::Dense { plan, .. }, Received::Dense(all)) => {
                let values = sized(values, plan.layout().elements() as usize)?;
                device.decode_model(plan, DecodeMode::Sum(1.0), &[&all[rank]], values)?;
                Ok(self.ranges().collect())
            }
            (Method::Rotated { plan, .. }, Received::Rotated(all)) => {
                device.decode_sum(&all[rank..=rank], 1.0, sized(values, plan.len())?)?;
                Ok(std::iter::once(0..plan.len()).collect())
            }
            (Method::Sparse { elements, .. }, Received::Sparse(all)) => {
                device.decode_sparse_sum(&all[rank..=rank], 1.0, sized(values, *elements)?)?;
                Ok(std::iter::once(0..*elements).collect())
            }
            (method, received) => self.unread(method, received).map(|()| Vec::new()),
        }
    }

    /// Whether a part that no decoder takes is right as it is: it was summed, or exchanged by another algorithm than a
    /// gather. Every pair has its line, so that a new method cannot leave a rank's own gradient as the mean.
    ///
    /// # Errors
    /// [`RecipeError::Stages`] for payloads of another method.
    pub(super) fn unread(&self, method: &Method, received: &Received<'_>) -> Result<(), Error> {
        match (method, received) {
            (Method::LowRank { .. } | Method::Random { .. }, Received::Nothing) => Ok(()),
            (Method::Dense { .. } | Method::Sparse { .. } | Method::Rotated { .. }, Received::Nothing)
                if self.via != Algorithm::Gather =>
            {
                Ok(())
            }
            (
                Method::Dense { .. },
                Received::Nothing | Received::Dense(_) | Received::Rotated(_) | Received::Sparse(_),
            )
            | (
                Method::Sparse { .. },
                Received::Nothing | Received::Dense(_) | Received::Rotated(_) | Received::Sparse(_),
            )
            | (
                Method::Rotated { .. },
                Received::Nothing | Received::Dense(_) | Received::Rotated(_) | Received::Sparse(_),
            )
            | (Method::LowRank { .. }, Received::Dense(_) | Received::Rotated(_) | Received::Sparse(_))
            | (Method::Random { .. }, Received::Dense(_) | Received::Rotated(_) | Received::Sparse(_)) => {
                let what = "payloads arrived that the recipe's method cannot decode";
                Err(RecipeError::Stages { what, remedy: "report this: it is a fault of gradwire" }.into())
            }
        }
    }

    /// Adds what some ranks have sent, times the weight, to numbers for the elements of the gradient.
    pub(super) fn add(
        &self,
        device: &Device,
        received: &Received<'_>,
        ranks: Range<usize>,
        weight: f32,
        output: &mut [f32],
    ) -> Result<(), Error> {
        match (&self.method, received) {
            (Method::Dense { plan, .. }, Received::Dense(all)) => {
                let ranks: Vec<&[PayloadView<'_>]> = all[ranks].iter().map(Vec::as_slice).collect();
                let output = &mut output[..plan.layout().elements() as usize];
                device.decode_model(plan, DecodeMode::Add(weight), &ranks, output)
            }
            (Method::Sparse { packed, .. }, Received::Sparse(all)) => {
                let mut own = if *packed { self.pack(output)? } else { Vec::new() };
                let to = if *packed { &mut own } else { &mut *output };
                all[ranks].iter().try_for_each(|payload| device.decode_sparse_add(payload, weight, to))?;
                if *packed {
                    self.unpack(&own, output);
                }
                Ok(())
            }
            (method, received) => self.unread(method, received),
        }
    }

    /// The numbers in the gradient of the elements that a rank has sent of a selection.
    pub(super) fn sent(&self, received: &Received<'_>, rank: usize) -> Result<Vec<u32>, Error> {
        let (Method::Sparse { packed, .. }, Received::Sparse(payloads)) = (&self.method, received) else {
            return Ok(Vec::new());
        };
        let mine = payloads.get(rank).map_or(&[][..], SparsePayload::indices);
        if !packed {
            return words::copied(mine, SENT);
        }
        let mut sent = words::reserved(mine.len(), SENT)?;
        let mut indices = mine.iter().map(|index| *index as usize).peekable();
        let mut before = 0;
        for range in self.ranges() {
            while let Some(index) = indices.next_if(|index| *index < before + range.len()) {
                sent.push((range.start + index - before) as u32);
            }
            before += range.len();
        }
        Ok(sent)
    }

    pub(super) fn elements(&self) -> usize {
        self.spans.iter().map(|span| span.elements as usize).sum()
    }

    /// Its tensors one after another.
    pub(super) fn pack(&self, gradient: &[f32]) -> Result<Vec<f32>, Error> {
        let mut packed = words::reserved(self.elements(), VALUES)?;
        self.ranges().for_each(|range| packed.extend_from_slice(&gradient[range]));
        Ok(packed)
    }

    /// [`Part::pack`], backwards.
    pub(super) fn unpack(&self, mut packed: &[f32], gradient: &mut [f32]) {
        for range in self.ranges() {
            let (mine, rest) = packed.split_at(range.len());
            gradient[range].copy_from_slice(mine);
            packed = rest;
        }
    }
}

/// The tensors of a part that goes as factors. Alone, it takes the model's others along as vectors, which it sends as
/// they are.
pub(super) fn matrices(model: &[Tensor], tensors: &[usize], alone: bool) -> Vec<Matrix> {
    let matrix = |(index, tensor): (usize, &Tensor)| match tensors.binary_search(&index) {
        Ok(_) => Some(Matrix::of(&tensor.shape)),
        Err(_) => alone.then(|| Matrix::vector(tensor.elements())),
    };
    model.iter().enumerate().filter_map(matrix).collect()
}

/// What all ranks have sent for a part, checked.
#[derive(Debug)]
pub(super) enum Received<'m> {
    Dense(Vec<Vec<PayloadView<'m>>>),
    Rotated(Vec<PayloadView<'m>>),
    Sparse(Vec<SparsePayload>),
    Nothing,
}

impl Received<'_> {
    /// Ranks that have sent something.
    pub(super) fn ranks(&self) -> usize {
        match self {
            Self::Dense(all) => all.len(),
            Self::Rotated(all) => all.len(),
            Self::Sparse(all) => all.len(),
            Self::Nothing => 0,
        }
    }
}

/// Memory for this number of values, the same one if it has the size already.
fn sized(values: &mut Vec<f32>, elements: usize) -> Result<&mut [f32], Error> {
    if values.len() != elements {
        *values = zeros(elements as u64, VALUES)?;
    }
    Ok(values)
}

fn dense(recipe: &Recipe, spans: &[TensorSpan], limits: &Limits) -> Result<ModelPlan, Error> {
    let layout = Layout::new(spans.to_vec())?;
    let stages = RecipeError::Stages { what: "no stages", remedy: "name a codec" };
    let plan = ModelPlan::new(&recipe.dense().ok_or(stages)?, &layout, Dtype::F32, limits)?;
    // Before the others wait for this rank's payloads: codes are packed in one binding each.
    plan.tensors().iter().try_for_each(|tensor| Packing::new(tensor.header(), recipe.entropy, limits).map(drop))?;
    Ok(plan)
}

/// A selection of each tensor, if it says a number for each; else the same, of all tensors together.
fn of_spans(codec: &TopK, spans: &[TensorSpan], packed: bool, elements: u64) -> TopK {
    let covered = spans.iter().map(|span| span.elements).sum::<u64>() == elements;
    let single = spans.len() == 1 && (covered || packed);
    let of_all = if single { None } else { segments(codec, spans, elements, !packed) };
    of_all.map_or(codec.clone(), |segments| codec.keep_of_each(&segments))
}

/// Refuses a selection or quantizer that this number of elements does not admit.
fn check(codec: &TopK, elements: u64, recipe: &Recipe) -> Result<(), Error> {
    let plan = codec.plan(elements as usize, Dtype::F32, recipe.memory().adds_residual())?;
    let values = plan.quantizer(plan.most() as usize, false)?;
    values.map_or(Ok(()), |values| recipe.memory().check_feedback(&values))
}

/// What is kept of each tensor, where that is a number for each: with `gaps` also nothing of what lies between them, up
/// to `elements`. `None` for a selection that looks at all tensors together.
fn segments(codec: &TopK, spans: &[TensorSpan], elements: u64, gaps: bool) -> Option<Vec<Segment>> {
    let kept = |elements: u64| match codec.keep() {
        Keep::Count(k) => Some((*k).min(elements)),
        Keep::Fraction(_) => {
            let plan = codec.plan(elements as usize, Dtype::F32, false).ok()?;
            Some(plan.most())
        }
        _ => None,
    };
    let mut all = Vec::new();
    let mut end = 0;
    for span in spans {
        if gaps && span.offset > end {
            all.push(Segment { elements: span.offset - end, k: 0 });
        }
        all.push(Segment { elements: span.elements, k: kept(span.elements)? });
        end = span.end();
    }
    if gaps && elements > end {
        all.push(Segment { elements: elements - end, k: 0 });
    }
    Some(all)
}

/// What lies between ranges that rise, up to `end`.
pub(super) fn gaps(ranges: impl Iterator<Item = Range<usize>>, end: usize) -> impl Iterator<Item = Range<usize>> {
    let mut before = 0;
    ranges.chain(std::iter::once(end..end)).map(move |range| {
        let gap = before..range.start;
        before = range.end;
        gap
    })
}

/// Ranges of values, in ascending order, each with the element that it begins at.
fn parts_of(values: &mut [f32], ranges: impl Iterator<Item = Range<usize>>) -> Vec<(u64, &mut [f32])> {
    let (mut rest, mut at, mut parts) = (values, 0, Vec::new());
    for range in ranges {
        let (part, after) = rest[range.start - at..].split_at_mut(range.len());
        parts.push((range.start as u64, part));
        (rest, at) = (after, range.end);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_fit_no_binding_are_refused_before_anything_is_sent() {
        let n = 1 << 20;
        let (model, layout) = ([Tensor::new("a", [n])], Layout::packed([n]).expect("valid"));
        let limits = Limits { binding_bytes: 2 << 20, ..Limits::NONE };
        let fit = |text: &str, limits: &Limits| {
            let recipe: Recipe = text.parse().expect("a recipe");
            Part::new(recipe, vec![0], &model, &layout, true, 0, 1).expect("valid").fit(limits)
        };
        // A code of 16 bits is packed in 32 at most.
        assert!(matches!(fit("qsgd:bits=16+elias", &limits), Err(Error::Limit { needed, .. }) if needed > 4 << 20));
        fit("qsgd:bits=16", &limits).expect("parts of it fit");
        fit("qsgd:bits=8+elias", &limits).expect_err("16 bits at most, and a table");
        fit("qsgd:bits=4+elias", &limits).expect("8 bits at most");
        fit("qsgd:bits=16+elias", &Limits::NONE).expect("there is no limit");
        let of_half = "topk:0.5+qsgd:bits=16+elias";
        assert!(
            matches!(fit(of_half, &limits), Err(Error::Limit { needed, .. }) if needed > 2 << 20),
            "as many of half"
        );
        fit("topk:0.1+qsgd:bits=16+elias", &limits).expect("a tenth of the values");
    }
}
