//! Selections of each tensor, in one selection of a group.

use crate::codec::topk::{Keep, Segment, TopK};
use crate::gradient::Dtype;
use crate::model::TensorSpan;

/// A selection of each tensor, if the codec keeps a number of each; else the same selection, of all tensors together.
pub(super) fn of_spans(codec: &TopK, spans: &[TensorSpan], packed: bool, elements: u64) -> TopK {
    let covered = spans.iter().map(|span| span.elements).sum::<u64>() == elements;
    let single = spans.len() == 1 && (covered || packed);
    let of_all = if single { None } else { segments(codec, spans, elements, !packed) };
    of_all.map_or(codec.clone(), |segments| codec.keep_of_each(&segments))
}

/// The entries kept of each tensor, if the codec keeps a number of each; with `gaps`, also segments without entries for
/// the elements between the tensors, up to `elements`. `None` for a selection from all tensors together.
pub(super) fn segments(codec: &TopK, spans: &[TensorSpan], elements: u64, gaps: bool) -> Option<Vec<Segment>> {
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
