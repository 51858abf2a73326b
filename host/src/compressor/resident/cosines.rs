//! The cosine transform of a part, where the gradient lies.

use super::kept::{Finite, pack, unpack};
use super::memory::Queue;
use crate::compressor::part::Part;
use crate::embed::{DeviceMemory, Work};
use crate::error::Error;
use crate::plan::{Limits, Pass};
use crate::rotation::{Cosine, Dct, TurnBuffers};

/// What takes a part to coefficients and back.
pub(super) struct Cosines<D: DeviceMemory> {
    dct: Dct,
    /// Elements of the part.
    elements: u64,
    /// The part's tensors one behind the other, where the model has others.
    packed: Option<D::Room>,
    /// What a transform leaves, before it takes the gradient's place.
    turned: D::Room,
    finite: Finite<D>,
}

impl<D: DeviceMemory> Cosines<D> {
    /// None for a part that stays as it is.
    pub(super) fn new(queue: &Queue<'_, D>, part: &Part, packed: bool) -> Result<Option<Self>, Error> {
        let (elements, Some(dct)) = (part.elements() as u64, part.recipe.dct) else { return Ok(None) };
        if elements == 0 {
            return Ok(None);
        }
        let room = || queue.room(4 * elements);
        let cosines = Self {
            dct,
            elements,
            packed: if packed { Some(room()?) } else { None },
            turned: room()?,
            finite: Finite::new(queue, part.recipe.policy())?,
        };
        // A device that is too small is refused here, and in no step.
        cosines.passes(&queue.memory().limits()).map(|_| Some(cosines))
    }

    /// The passes of both directions.
    pub(super) fn passes(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = self.work(false).passes(limits)?.into_owned();
        passes.extend_from_slice(&self.work(true).passes(limits)?);
        Ok(passes)
    }

    /// Puts coefficients in the place of the part's gradient. What is not finite is refused before, where the recipe
    /// refuses it.
    pub(super) fn there(&self, queue: &Queue<'_, D>, part: &Part, gradient: &D::Slice) -> Result<(), Error> {
        let input = self.taken(queue, part, gradient)?;
        self.finite.refuse(queue, part, &input)?;
        self.turn(queue, part, input, gradient, false)
    }

    /// Puts the part's gradient in the place of coefficients.
    pub(super) fn back(&self, queue: &Queue<'_, D>, part: &Part, gradient: &D::Slice) -> Result<(), Error> {
        let input = self.taken(queue, part, gradient)?;
        self.turn(queue, part, input, gradient, true)
    }

    /// The part's elements one behind the other.
    fn taken(&self, queue: &Queue<'_, D>, part: &Part, gradient: &D::Slice) -> Result<D::Slice, Error> {
        let Some(packed) = &self.packed else { return Ok(gradient.clone()) };
        let packed = queue.all(packed);
        pack(queue, part.ranges(), gradient, &packed)?;
        Ok(packed)
    }

    fn turn(
        &self,
        queue: &Queue<'_, D>,
        part: &Part,
        input: D::Slice,
        gradient: &D::Slice,
        back: bool,
    ) -> Result<(), Error> {
        let output = queue.all(&self.turned);
        queue.run(self.work(back), TurnBuffers { input, output: output.clone() })?;
        unpack(queue, part.ranges(), &output, gradient)
    }

    fn work(&self, back: bool) -> Cosine {
        Cosine { dct: self.dct, elements: self.elements, back }
    }
}
