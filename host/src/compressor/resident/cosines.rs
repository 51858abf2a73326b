//! The cosine transform of a group's gradient, in a device's memory.

use crate::compressor::group::Group;
use crate::compressor::queue::{Finite, Queue, pack, unpack};
use crate::embed::{Cosine, DeviceMemory, Tiling, TurnBuffers, Work};
use crate::error::Error;
use crate::plan::{Limits, Pass};
use crate::rotation::{Dct, Tiles};

/// The transform of a group to coefficients and back.
pub(super) struct Cosines<D: DeviceMemory> {
    dct: Dct,
    /// The order in which elements are transformed, if it is not that of the gradient.
    order: Option<Tiles>,
    /// Elements of the group.
    elements: u64,
    /// Memory for the concatenated tensors, if the model has others.
    packed: Option<D::Room>,
    /// The output of a transform, or the elements in their order, before they replace the gradient.
    turned: D::Room,
    finite: Option<Finite<D>>,
}

impl<D: DeviceMemory> Cosines<D> {
    /// None for a group without a transform.
    pub(super) fn new(queue: &Queue<'_, D>, group: &Group, packed: bool) -> Result<Option<Self>, Error> {
        let (elements, Some(dct)) = (group.elements() as u64, group.recipe.dct) else { return Ok(None) };
        if elements == 0 {
            return Ok(None);
        }
        let room = || queue.room(4 * elements);
        let cosines = Self {
            dct,
            order: group.order.clone(),
            elements,
            packed: if packed { Some(room()?) } else { None },
            turned: room()?,
            finite: Finite::under(queue, group.recipe.policy())?,
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

    /// Replaces the group's gradient by coefficients. Non-finite values are refused before, if the recipe refuses them.
    pub(super) fn there(&self, queue: &Queue<'_, D>, group: &Group, gradient: &D::Slice) -> Result<(), Error> {
        let input = self.taken(queue, group, gradient)?;
        self.finite.as_ref().map_or(Ok(()), |finite| finite.refuse(queue, group, &input))?;
        let turned = queue.all(&self.turned);
        let Some(tiles) = &self.order else {
            self.turn(queue, &input, &turned, false)?;
            return unpack(queue, group.ranges(), &turned, gradient);
        };
        self.put(queue, tiles, &input, &turned, false)?;
        self.turn(queue, &turned, &input, false)?;
        self.given(queue, group, gradient)
    }

    /// Replaces coefficients by the group's gradient.
    pub(super) fn back(&self, queue: &Queue<'_, D>, group: &Group, gradient: &D::Slice) -> Result<(), Error> {
        let input = self.taken(queue, group, gradient)?;
        let turned = queue.all(&self.turned);
        self.turn(queue, &input, &turned, true)?;
        let Some(tiles) = &self.order else { return unpack(queue, group.ranges(), &turned, gradient) };
        self.put(queue, tiles, &turned, &input, true)?;
        self.given(queue, group, gradient)
    }

    /// The group's elements, concatenated.
    fn taken(&self, queue: &Queue<'_, D>, group: &Group, gradient: &D::Slice) -> Result<D::Slice, Error> {
        let Some(packed) = &self.packed else { return Ok(gradient.clone()) };
        let packed = queue.all(packed);
        pack(queue, group.ranges(), gradient, &packed)?;
        Ok(packed)
    }

    /// The inverse of [`Cosines::taken`].
    fn given(&self, queue: &Queue<'_, D>, group: &Group, gradient: &D::Slice) -> Result<(), Error> {
        let Some(packed) = &self.packed else { return Ok(()) };
        unpack(queue, group.ranges(), &queue.all(packed), gradient)
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
