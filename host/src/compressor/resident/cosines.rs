//! The cosine transform of a part, where the gradient lies.

use super::finite::Finite;
use super::kept::{pack, unpack};
use super::memory::Queue;
use crate::compressor::part::Part;
use crate::embed::{Cosine, DeviceMemory, Tiling, TurnBuffers, Work};
use crate::error::Error;
use crate::plan::{Limits, Pass};
use crate::rotation::{Dct, Tiles};

/// What takes a part to coefficients and back.
pub(super) struct Cosines<D: DeviceMemory> {
    dct: Dct,
    /// The order in which elements are transformed, if it is not the one in which they lie.
    order: Option<Tiles>,
    /// Elements of the part.
    elements: u64,
    /// The part's tensors one after another, where the model has others.
    packed: Option<D::Room>,
    /// What a transform leaves, or the elements in their order, before they take the gradient's place.
    turned: D::Room,
    finite: Option<Finite<D>>,
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
            order: part.order.clone(),
            elements,
            packed: if packed { Some(room()?) } else { None },
            turned: room()?,
            finite: Finite::under(queue, part.recipe.policy())?,
        };
        // A device that is too small is refused here, and in no step.
        cosines.passes(&queue.memory().limits()).map(|_| Some(cosines))
    }

    /// The passes of both directions.
    pub(super) fn passes(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = Vec::new();
        for back in [false, true] {
            passes.extend_from_slice(&self.work(back).passes(limits)?);
            for of in self.order.iter().flat_map(Tiles::moves).filter(|of| !of.is_run()) {
                passes.extend_from_slice(&Tiling { of: *of, elements: self.elements, back }.passes(limits)?);
            }
        }
        Ok(passes)
    }

    /// Puts coefficients in place of the part's gradient. What is not finite is refused before, where the recipe
    /// refuses it.
    pub(super) fn there(&self, queue: &Queue<'_, D>, part: &Part, gradient: &D::Slice) -> Result<(), Error> {
        let input = self.taken(queue, part, gradient)?;
        self.finite.as_ref().map_or(Ok(()), |finite| finite.refuse(queue, part, &input))?;
        let turned = queue.all(&self.turned);
        let Some(tiles) = &self.order else {
            self.turn(queue, &input, &turned, false)?;
            return unpack(queue, part.ranges(), &turned, gradient);
        };
        self.put(queue, tiles, &input, &turned, false)?;
        self.turn(queue, &turned, &input, false)?;
        self.given(queue, part, gradient)
    }

    /// Puts the part's gradient in place of coefficients.
    pub(super) fn back(&self, queue: &Queue<'_, D>, part: &Part, gradient: &D::Slice) -> Result<(), Error> {
        let input = self.taken(queue, part, gradient)?;
        let turned = queue.all(&self.turned);
        self.turn(queue, &input, &turned, true)?;
        let Some(tiles) = &self.order else { return unpack(queue, part.ranges(), &turned, gradient) };
        self.put(queue, tiles, &turned, &input, true)?;
        self.given(queue, part, gradient)
    }

    /// The part's elements one after another.
    fn taken(&self, queue: &Queue<'_, D>, part: &Part, gradient: &D::Slice) -> Result<D::Slice, Error> {
        let Some(packed) = &self.packed else { return Ok(gradient.clone()) };
        let packed = queue.all(packed);
        pack(queue, part.ranges(), gradient, &packed)?;
        Ok(packed)
    }

    /// [`Cosines::taken`], backwards.
    fn given(&self, queue: &Queue<'_, D>, part: &Part, gradient: &D::Slice) -> Result<(), Error> {
        let Some(packed) = &self.packed else { return Ok(()) };
        unpack(queue, part.ranges(), &queue.all(packed), gradient)
    }

    /// Puts elements in their order, or back.
    fn put(
        &self,
        queue: &Queue<'_, D>,
        tiles: &Tiles,
        input: &D::Slice,
        output: &D::Slice,
        back: bool,
    ) -> Result<(), Error> {
        tiles.moves().iter().try_for_each(|of| {
            if of.is_run() {
                let (from, to) = if back { (of.ordered, of.lies) } else { (of.lies, of.ordered) };
                return queue.copy((input, 4 * from), (output, 4 * to), 4 * of.elements());
            }
            let work = Tiling { of: *of, elements: self.elements, back };
            queue.run(work, TurnBuffers { input: input.clone(), output: output.clone() })
        })
    }

    fn turn(&self, queue: &Queue<'_, D>, input: &D::Slice, output: &D::Slice, back: bool) -> Result<(), Error> {
        queue.run(self.work(back), TurnBuffers { input: input.clone(), output: output.clone() })
    }

    fn work(&self, back: bool) -> Cosine {
        Cosine { dct: self.dct, elements: self.elements, back }
    }
}
