//! Recipes as texts.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use super::methods::{PREFIX, expanded};
use super::near;
use super::words::{word, words_of};
use super::{Algorithm, Memory, Quantize, Recipe, Shift};
use crate::codec::estimate::Estimate;
use crate::codec::powersgd::PowerSgd;
use crate::codec::topk::{Keep, Segment, TopK};
use crate::codec::{Quantizer, Sign, Stage, quantizers};
use crate::error::{Error, RecipeError};
use crate::float_environment::FloatEnvironment;
use crate::gradient::Dtype;
use crate::plan::NonFinite;
use crate::random::RandomK;
use crate::rotation::{Dct, Rotation};
use crate::wire::{CodecId, Entropy};

/// What may stand where a stage does, after none and the quantizers.
const STAGES: &str = "topk, dgc, randomk, powersgd, f16, bf16, rotate, dct, elias, delta, base3, sparse, vote, ef, noef, ef21, \
                      diana, momentum=<factor>, nesterov, unmasked, clip=<norm>, peers:norm=<norm>, gtopk, twophase or finite";
const NORM: &str = "a norm above 0";
const BUCKETS: &str = "a power of two from 32 to 8192, or whole,";

/// Bytes of a text, several times those of any recipe: an error quotes the text, and each of its words is held against
/// all before it.
const LONGEST: usize = 1024;

impl FromStr for Recipe {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let _environment = FloatEnvironment::standard();
        if text.len() > LONGEST {
            return Err(RecipeError::Length { bytes: text.len(), most: LONGEST }.into());
        }
        if let Some(expanded) = expanded(text) {
            return expanded.map_err(|names| unknown_method(text, names))?.parse();
        }
        let mut builder = Builder::new();
        let mut at = 0;
        for part in text.split('+') {
            let name = part.split([':', '=']).next().unwrap_or(part);
            let word = Word { text, at, name, settings: &part[name.len()..] };
            at += part.len() + 1;
            builder.add(&word)?;
            let whole = builder.recipe.select.is_none() && builder.recipe.factors.is_none();
            if !whole && builder.recipe.memory.momentum.is_some() && builder.said("noef", text) {
                let found = "momentum keeps what was not selected, and noef drops it".into();
                return Err(word.wrong(0, found, "neither, or one of the two"));
            }
            // What a codec says of its own settings belongs to its place.
            if is_codec(builder.last()) && !matches!(word.name, "f16" | "bf16") {
                let mut alone = Builder::new();
                alone.add(&word)?;
                let recipe = Self { memory: Memory::default(), ..alone.recipe };
                recipe.check().map_err(|source| placed(text, word.at, source))?;
            }
        }
        if let Some(Turn { block, own }) = builder.turn {
            // A setting that the text leaves out is that of the codec's own rotation, or the default.
            let usual = builder.recipe.brought().unwrap_or_default();
            let rotation = Rotation::block(block.unwrap_or(usual.elements()));
            builder.recipe =
                builder.recipe.rotate(if own.unwrap_or(usual.is_own()) { rotation.own() } else { rotation });
        }
        if builder.recipe.is_none() && !builder.said("ef", text) {
            // A momentum brings error feedback, of which there is none here.
            builder.recipe.memory.feedback = false;
        }
        let last = builder.seen.last().map_or(0, |(_, at)| *at);
        builder.recipe.check().map_err(|source| placed(text, last, source))?;
        Ok(builder.recipe)
    }
}

fn unknown_method(text: &str, names: String) -> Error {
    let name = text[PREFIX.len()..].split(['+', ':', '=']).next().unwrap_or_default();
    let found = near::of_list(name, &names, "this is no method's name".into());
    RecipeError::Text { text: text.into(), at: PREFIX.len(), found, allowed: names }.into()
}

fn placed(text: &str, at: usize, source: Error) -> Error {
    RecipeError::Setting { text: text.into(), at, source: source.into() }.into()
}

/// What a stage is for. A recipe has one of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    What,
    Select,
    Factors,
    Rotate,
    Dct,
    Quantize,
    Entropy,
    Vote,
    Feedback,
    Momentum,
    Nesterov,
    Unmasked,
    Clip,
    Peers,
    Algorithm,
    Policy,
}

struct Builder {
    recipe: Recipe,
    seen: Vec<(Slot, usize)>,
    turn: Option<Turn>,
}

impl Builder {
    fn new() -> Self {
        Self { recipe: Recipe::none(), seen: Vec::new(), turn: None }
    }
}

impl Builder {
    fn add(&mut self, word: &Word<'_>) -> Result<(), Error> {
        let slot = match word.name {
            "none" | "randomk" => Slot::What,
            "powersgd" => Slot::Factors,
            "topk" | "dgc" => Slot::Select,
            "f16" | "bf16" => Slot::Quantize,
            name if name == "signum" || Quantizer::is_word(name) => Slot::Quantize,
            "elias" | "delta" | "base3" | "sparse" => Slot::Entropy,
            "rotate" => Slot::Rotate,
            "dct" => Slot::Dct,
            "vote" => Slot::Vote,
            "ef" | "noef" | "ef21" | "diana" => Slot::Feedback,
            "momentum" => Slot::Momentum,
            "nesterov" => Slot::Nesterov,
            "unmasked" => Slot::Unmasked,
            "clip" => Slot::Clip,
            "peers" => Slot::Peers,
            "gtopk" | "twophase" => Slot::Algorithm,
            "finite" => Slot::Policy,
            other => {
                let allowed = format!("none, {}signum, {STAGES}", Quantizer::WORDS);
                let found = near::of_stage(other, &allowed, format!("{other:?} is no stage"));
                return Err(word.wrong(0, found, allowed));
            }
        };
        // What sends nothing else, and the two that choose what is sent.
        let apart = |a, b| a == Slot::What && is_codec(b) || (a, b) == (Slot::Select, Slot::Factors);
        let taken = |(other, _): &(Slot, usize)| *other == slot || apart(*other, slot) || apart(slot, *other);
        if let Some((_, first)) = self.seen.iter().find(|seen| taken(seen)) {
            let found = format!("{:?} does not go with the stage at byte {first}", word.name);
            return Err(word.wrong(0, found, "the end of the text, or a stage of another kind"));
        }
        self.seen.push((slot, word.at));
        if let Some((_, plain)) = [("dgc", "topk"), ("signum", "sign:unit")].iter().find(|(name, _)| *name == word.name)
        {
            if let Some((_, first)) = self.seen.iter().find(|(other, _)| *other == Slot::Momentum) {
                let found = format!("{} has a momentum, and another is at byte {first}", word.name);
                return Err(word.wrong(0, found, format!("{plain}, or {} alone", word.name)));
            }
            self.seen.push((Slot::Momentum, word.at));
        }
        let feedback = !self.said("noef", word.text);
        let recipe = &mut self.recipe;
        // Stages come in any order, and a codec's word says nothing of the packing.
        let mut entropy = recipe.entropy;
        match word.name {
            "topk" => {
                let (select, warm_up) = word.topk()?;
                (recipe.select, recipe.warm_up) = (Some(select), warm_up);
            }
            "dgc" => {
                let Dgc { part, factor, warm_up, nesterov, unmasked, clip } = word.dgc()?;
                (recipe.select, recipe.warm_up) = (Some(TopK::fraction(part)), warm_up);
                let nesterov = nesterov || recipe.memory.nesterov;
                let unmasked = unmasked || recipe.memory.unmasked;
                recipe.memory = Memory { feedback: true, momentum: Some(factor), nesterov, unmasked, ..recipe.memory };
                if let Some(norm) = clip {
                    if let Some((_, first)) = self.seen.iter().find(|(other, _)| *other == Slot::Clip) {
                        let found = format!("dgc has a clip, and another is at byte {first}");
                        return Err(word.wrong(0, found, "dgc without clip, or dgc alone"));
                    }
                    self.seen.push((Slot::Clip, word.at));
                    self.recipe.clip = Some(norm);
                }
            }
            "signum" => {
                let (codec, factor) = word.signum()?;
                recipe.set_quantize(codec.into());
                recipe.memory = Memory { momentum: Some(factor), ..recipe.memory };
            }
            "randomk" => {
                let codec = word.random()?;
                recipe.random = Some(codec);
                if !codec.is_unbiased() {
                    self.default_feedback();
                }
            }
            "rotate" => self.turn = Some(word.turn()?),
            "dct" => recipe.dct = Some(word.dct()?),
            "twophase" => recipe.algorithm = Algorithm::TwoPhase { from: word.from()? },
            "powersgd" => {
                recipe.factors = Some(word.powersgd()?);
                self.default_feedback();
            }
            "momentum" => {
                let setting = word.only("momentum=<factor>, from 0 to less than 1,")?;
                recipe.memory.momentum = Some(setting.number("a factor from 0 to less than 1")?);
                recipe.memory.feedback |= recipe.memory.shift.is_none() && feedback;
            }
            "clip" => recipe.clip = Some(word.only("clip=<norm>, above 0,")?.number(NORM)?),
            "peers" => recipe.peers = Some(word.peers()?),
            "ef" => {
                let (beta, gamma) = word.feedback()?;
                recipe.memory = Memory { feedback: true, beta, gamma, ..recipe.memory };
            }
            "ef21" => {
                word.bare()?;
                recipe.memory = Memory { feedback: false, shift: Some(Shift::Ef21), ..recipe.memory };
            }
            "diana" => {
                let alpha = word.diana()?;
                recipe.memory = Memory { feedback: false, shift: Some(Shift::Diana { alpha }), ..recipe.memory };
            }
            name if Quantizer::is_word(name) => {
                recipe.set_quantize(word.quantizer()?);
                if recipe.quantize.brings_feedback() {
                    self.default_feedback();
                }
            }
            name => {
                word.bare()?;
                match name {
                    "f16" => recipe.set_quantize(Dtype::F16.into()),
                    "bf16" => recipe.set_quantize(Dtype::Bf16.into()),
                    "elias" => entropy = Entropy::Elias,
                    "delta" => entropy = Entropy::Delta,
                    "base3" => entropy = Entropy::Base3,
                    "sparse" => entropy = Entropy::Sparse,
                    "vote" => recipe.vote = true,
                    "nesterov" => recipe.memory.nesterov = true,
                    "unmasked" => recipe.memory.unmasked = true,
                    "gtopk" => recipe.algorithm = Algorithm::Tree,
                    "noef" => recipe.memory.feedback = false,
                    "finite" => recipe.non_finite = NonFinite::Error,
                    _ => {}
                }
            }
        }
        self.recipe.entropy = entropy;
        Ok(())
    }

    /// Whether a memory stage of this name stands in the text so far.
    fn said(&self, name: &str, text: &str) -> bool {
        self.seen.iter().any(|(slot, at)| *slot == Slot::Feedback && text[*at..].starts_with(name))
    }

    /// 1-bit SGD, signs, random-k and PowerSGD have error feedback, unless the text has said otherwise already.
    fn default_feedback(&mut self) {
        if !self.seen.iter().any(|(slot, _)| *slot == Slot::Feedback) {
            self.recipe.memory.feedback = true;
        }
    }

    /// The kind of the last stage. Other settings of dgc and signum follow their selection and their signs.
    fn last(&self) -> Slot {
        let last = self.seen.last().map_or(0, |(_, at)| *at);
        self.seen.iter().find(|(_, at)| *at == last).map_or(Slot::What, |(slot, _)| *slot)
    }
}

/// What a text says of a rotation.
#[derive(Clone, Copy)]
struct Turn {
    block: Option<usize>,
    /// Whether signs are of each rank's own, and not common.
    own: Option<bool>,
}

fn is_codec(slot: Slot) -> bool {
    matches!(slot, Slot::What | Slot::Select | Slot::Factors | Slot::Quantize)
}

/// What dgc sets: the part that is kept, momentum, the steps of the warm-up, the momentum's form, and the norm.
struct Dgc {
    part: f64,
    factor: f32,
    warm_up: u64,
    nesterov: bool,
    unmasked: bool,
    clip: Option<f32>,
}

/// A stage as it stands in the text.
struct Word<'t> {
    text: &'t str,
    /// Where it begins.
    at: usize,
    name: &'t str,
    /// What follows the name.
    settings: &'t str,
}

/// A setting of a stage: `key=value`, or a key alone.
struct Setting<'w, 't> {
    word: &'w Word<'t>,
    /// Where it begins in the stage.
    at: usize,
    key: &'t str,
    value: Option<&'t str>,
}

impl<'t> Word<'t> {
    fn wrong(&self, at: usize, found: String, allowed: impl Into<String>) -> Error {
        let allowed = allowed.into();
        RecipeError::Text { text: self.text.into(), at: self.at + at, found, allowed }.into()
    }

    /// The settings after the colon, none of them twice.
    fn list(&self, allowed: &str) -> Result<Vec<Setting<'_, 't>>, Error> {
        let Some(list) = self.settings.strip_prefix(':') else {
            return match self.settings {
                "" => Ok(Vec::new()),
                _ => Err(self.wrong(
                    self.name.len(),
                    format!("{} is followed by \"=\"", self.name),
                    format!("\":\" and {allowed}"),
                )),
            };
        };
        let mut all: Vec<Setting<'_, 't>> = Vec::new();
        let mut at = self.name.len() + 1;
        for part in list.split(',') {
            let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
            if all.iter().any(|other| other.key == key) {
                return Err(self.wrong(
                    at,
                    format!("{key:?} stands there a second time"),
                    format!("another of {allowed}"),
                ));
            }
            all.push(Setting { word: self, at, key, value });
            at += part.len() + 1;
        }
        Ok(all)
    }

    /// No settings.
    fn bare(&self) -> Result<(), Error> {
        if self.settings.is_empty() {
            return Ok(());
        }
        let found = format!("{} takes no settings, and {:?} stands there", self.name, self.settings);
        Err(self.wrong(self.name.len(), found, "\"+\" or the end of the text"))
    }

    /// The value of a stage that is a single setting.
    fn only(&self, allowed: &'static str) -> Result<Setting<'_, 't>, Error> {
        match self.settings.strip_prefix('=') {
            Some(value) => Ok(Setting { word: self, at: 0, key: self.name, value: Some(value) }),
            None => Err(self.wrong(0, format!("{} has no value", self.name), allowed)),
        }
    }

    /// A quantizer with its settings, of those in the table.
    fn settings<S: Stage>(&self) -> Result<S, Error> {
        let allowed = listed(S::SETTINGS);
        let list = self.list(&allowed)?;
        let mut codec = S::PLAIN;
        // What a word sets beside itself, a setting with a value sets otherwise, wherever it stands.
        let (words, values): (Vec<_>, Vec<_>) = list.iter().partition(|s| s.value.is_none());
        for s in words.into_iter().chain(values) {
            if !S::SETTINGS.contains(&s.key) {
                return Err(s.unknown(&allowed));
            }
            let is_format = |key: &str| S::FORMATS.contains(&key);
            if let Some(first) = list.iter().find(|other| is_format(other.key) && is_format(s.key) && other.at < s.at) {
                let found = format!("{:?} is a second format behind {:?}", s.key, first.key);
                return Err(self.wrong(s.at, found, "scaled, bucket or nearest"));
            }
            let common = codec.common();
            match s.key {
                "bits" if list.iter().any(|other| other.key == "levels") => {
                    return Err(self.wrong(s.at, "both bits and levels are set".into(), "one of the two"));
                }
                "bits" => common.bits = s.number(common.codec.allowed_widths())?,
                "levels" => {
                    let of_quantiles = common.codec == CodecId::Quantile;
                    let allowed = if of_quantiles { "a power of two from 4 to 256" } else { "1 to 32767" };
                    *common = common.of_levels(s.number(allowed)?);
                }
                "bucket" => common.bucket = s.bucket()?,
                "contractive" => common.scaled = s.flag(true)?,
                key => {
                    if let Some((_, allowed, number)) = codec.numbers().into_iter().find(|(name, ..)| *name == key) {
                        *number = Some(s.number(allowed)?);
                        continue;
                    }
                    let set = s.flag(true)?;
                    if codec.take(key) {
                        continue;
                    }
                    codec.flags().into_iter().filter(|(name, _)| *name == key).for_each(|(_, flag)| *flag = set);
                }
            }
        }
        Ok(codec)
    }

    /// The largest norm of a rank.
    fn peers(&self) -> Result<f32, Error> {
        match &self.list("norm=<norm>")?[..] {
            [s] if s.key == "norm" => s.number(NORM),
            [s, ..] => Err(s.unknown("norm=<norm>")),
            [] => Err(self.wrong(self.name.len(), "peers has no norm".into(), "\":norm=<norm>\"")),
        }
    }

    /// Beta and gamma.
    fn feedback(&self) -> Result<(f32, f32), Error> {
        let (mut beta, mut gamma) = (1.0, 1.0);
        for s in &self.list("beta or gamma")? {
            match s.key {
                "beta" => beta = s.number("a factor from 0 to 1")?,
                "gamma" => gamma = s.number("a factor above 0")?,
                _ => return Err(s.unknown("beta or gamma")),
            }
        }
        Ok((beta, gamma))
    }

    fn diana(&self) -> Result<Option<f32>, Error> {
        let mut alpha = None;
        for s in &self.list("alpha")? {
            match s.key {
                "alpha" => alpha = Some(s.number("a factor above 0 and at most 1")?),
                _ => return Err(s.unknown("alpha")),
            }
        }
        Ok(alpha)
    }

    /// The least number of ranks of two phases.
    fn from(&self) -> Result<u32, Error> {
        let mut from = 1;
        for s in &self.list("from")? {
            match s.key {
                "from" => from = s.number("a number of ranks, 1 or more")?,
                _ => return Err(s.unknown("from")),
            }
        }
        Ok(from)
    }

    fn turn(&self) -> Result<Turn, Error> {
        let mut turn = Turn { block: None, own: None };
        for s in &self.list("block, own or common")? {
            match s.key {
                "block" => turn.block = Some(s.number("a power of two from 32 to 8192")?),
                "own" | "common" if turn.own.is_some() => {
                    return Err(self.wrong(s.at, "signs are both own and common".into(), "own or common"));
                }
                "own" => turn.own = Some(s.flag(true)?),
                "common" => turn.own = Some(s.flag(false)?),
                _ => return Err(s.unknown("block, own or common")),
            }
        }
        Ok(turn)
    }

    fn dct(&self) -> Result<Dct, Error> {
        let mut dct = Dct::default();
        let mut tiles = false;
        for s in &self.list("block or tiles")? {
            match s.key {
                "block" => dct = Dct::block(s.number("a power of two from 2 to 64")?),
                "tiles" => tiles = s.flag(true)?,
                _ => return Err(s.unknown("block or tiles")),
            }
        }
        Ok(if tiles { dct.tiles() } else { dct })
    }

    fn random(&self) -> Result<RandomK, Error> {
        let allowed = "a part of all such as 0.01, k or unbiased";
        let (mut codec, mut unbiased) = (None, false);
        for s in &self.list(allowed)? {
            let found = match s.key {
                "k" => RandomK::count(s.number("a number of entries")?),
                "unbiased" => {
                    unbiased = s.flag(true)?;
                    continue;
                }
                part => match (part.parse(), s.value) {
                    (Ok(part), None) => RandomK::fraction(part),
                    _ => return Err(s.unknown(allowed)),
                },
            };
            if codec.replace(found).is_some() {
                let found = format!("{:?} says a second time how many are sent", s.key);
                return Err(self.wrong(s.at, found, "unbiased"));
            }
        }
        match codec {
            Some(codec) if unbiased => Ok(codec.unbiased()),
            Some(codec) => Ok(codec),
            None => {
                let found = "nothing says how many are sent".into();
                Err(self.wrong(self.name.len(), found, format!("\":\" and {allowed}")))
            }
        }
    }

    fn powersgd(&self) -> Result<PowerSgd, Error> {
        let allowed = "rank, iterations, onesided or mincompression";
        let list = self.list(allowed)?;
        let rank = list.iter().find(|s| s.key == "rank").map_or(Ok(4), |s| s.number("1 to 32"))?;
        let mut codec = PowerSgd::rank(rank).without_feedback();
        for s in &list {
            codec = match s.key {
                "rank" => codec,
                "iterations" => codec.iterations(s.number("1 to 16")?),
                "onesided" => s.flag(codec.one_sided())?,
                "mincompression" => codec.min_compression(s.number("a number of 0 or more")?),
                _ => return Err(s.unknown(allowed)),
            };
        }
        Ok(codec)
    }

    fn dgc(&self) -> Result<Dgc, Error> {
        let allowed = "ratio, momentum, warmup, nesterov, unmasked or clip";
        let (mut part, mut factor, mut warm_up, mut nesterov, mut unmasked) = (0.01, 0.9, 0, false, false);
        let mut clip = None;
        for s in &self.list(allowed)? {
            match s.key {
                "ratio" => {
                    let allowed = "a number above 0 and up to 1";
                    part = s.number(allowed)?;
                    if !(0.0 < part && part <= 1.0) {
                        return Err(self.wrong(s.at, format!("{part} is no part of the entries"), allowed));
                    }
                }
                "momentum" => factor = s.number("a factor from 0 to less than 1")?,
                "warmup" => warm_up = s.number("a number of steps")?,
                "nesterov" => nesterov = s.flag(true)?,
                "unmasked" => unmasked = s.flag(true)?,
                "clip" => clip = Some(s.number(NORM)?),
                _ => return Err(s.unknown(allowed)),
            }
        }
        Ok(Dgc { part, factor, warm_up, nesterov, unmasked, clip })
    }

    /// Signs alone, and the momentum.
    fn signum(&self) -> Result<(Sign, f32), Error> {
        let (mut codec, mut factor) = (Sign::unit(), 0.9);
        for s in &self.list("momentum or bucket")? {
            match s.key {
                "momentum" => factor = s.number("a factor from 0 to less than 1")?,
                "bucket" => codec.common().bucket = s.bucket()?,
                _ => return Err(s.unknown("momentum or bucket")),
            }
        }
        Ok((codec, factor))
    }

    /// The selection, and the steps of its warm-up.
    fn topk(&self) -> Result<(TopK, u64), Error> {
        let allowed = "a part of all such as 0.01, k, block, above, segments, estimate, persign, warmup or clamped";
        let list = self.list(allowed)?;
        let (mut keep, mut block, mut estimate, mut per_sign) = (None, None, None, None);
        let (mut clamped, mut warm_up) = (false, 0);
        for s in &list {
            let kept = match s.key {
                "k" => Keep::Count(s.number("a number of entries")?),
                "above" => Keep::Above(s.number("a threshold of 0 or more")?),
                "segments" => Keep::Segments(s.segments()?.into()),
                "block" => {
                    block = Some((s, s.number("a number of elements")?));
                    continue;
                }
                "estimate" => {
                    estimate = Some((s, s.estimate()?));
                    continue;
                }
                "persign" => {
                    per_sign = Some(s.flag(s)?);
                    continue;
                }
                "warmup" => {
                    warm_up = s.number("a number of steps")?;
                    continue;
                }
                "clamped" => {
                    clamped = s.flag(true)?;
                    continue;
                }
                part => match (part.parse(), s.value) {
                    (Ok(part), None) if 0.0 < part && part <= 1.0 => Keep::Fraction(part),
                    (Ok::<f64, _>(_), None) => {
                        let found = format!("{part} is no part of the entries");
                        return Err(self.wrong(s.at, found, "a number above 0 and up to 1, or k=<entries>,"));
                    }
                    _ => return Err(s.unknown(allowed)),
                },
            };
            if keep.replace(kept).is_some() {
                return Err(self.wrong(
                    s.at,
                    format!("{:?} says a second time how many are kept", s.key),
                    "block, estimate, persign, warmup or clamped",
                ));
            }
        }
        let keep = match (keep, block) {
            (Some(Keep::Count(k)), Some((_, elements))) => Keep::Blocks { elements, k },
            (_, Some((s, _))) => {
                return Err(self.wrong(s.at, "block is set without k".into(), "k=<entries>,block=<elements>"));
            }
            (Some(keep), None) => keep,
            (None, None) => {
                return Err(self.wrong(
                    self.name.len(),
                    "nothing says how many are kept".into(),
                    format!("\":\" and {allowed}"),
                ));
            }
        };
        let keep = match (keep, estimate, per_sign) {
            (keep, None, None) => keep,
            (Keep::Fraction(part), Some((_, by)), None) => Keep::Estimate { part, by },
            (Keep::Fraction(part), None, Some(_)) => Keep::PerSign(part),
            (Keep::Fraction(_), Some(_), Some(s)) => {
                return Err(self.wrong(s.at, "persign is exact, and goes with no estimate".into(), "one of the two"));
            }
            (_, Some((s, _)), _) | (_, None, Some(s)) => {
                let found = format!("{} is set without a part", s.key);
                return Err(self.wrong(s.at, found, "a part of all, as 0.01,"));
            }
        };
        Ok((TopK::keeping(keep, clamped), warm_up))
    }
}

impl Setting<'_, '_> {
    fn unknown(&self, allowed: &str) -> Error {
        let found = format!("{:?} is no setting of {}", self.key, self.word.name);
        self.word.wrong(self.at, near::of_list(self.key, allowed, found), allowed)
    }

    fn number<N: FromStr>(&self, allowed: &str) -> Result<N, Error> {
        let Some(value) = self.value else {
            return Err(self.word.wrong(
                self.at,
                format!("{} has no value", self.key),
                format!("{}={allowed}", self.key),
            ));
        };
        value
            .parse()
            .map_err(|_| self.word.wrong(self.at + self.key.len() + 1, format!("{value:?} is no such number"), allowed))
    }

    fn flag<T>(&self, with: T) -> Result<T, Error> {
        match self.value {
            None => Ok(with),
            Some(_) => Err(self.word.wrong(
                self.at + self.key.len(),
                format!("{} takes no value", self.key),
                "\",\", \"+\" or the end of the text",
            )),
        }
    }

    /// The elements, or none for the whole tensor.
    fn bucket(&self) -> Result<Option<usize>, Error> {
        if self.value == Some("whole") { Ok(None) } else { self.number(BUCKETS).map(Some) }
    }

    /// How a threshold is estimated.
    fn estimate(&self) -> Result<Estimate, Error> {
        let words = Estimate::WORDS.map(|(word, _)| word);
        let found = Estimate::WORDS.into_iter().find(|(word, _)| self.value == Some(*word));
        found.map(|(_, estimate)| estimate).ok_or_else(|| {
            let found = format!("{:?} is no estimate", self.value.unwrap_or_default());
            self.word.wrong(self.at, found, format!("estimate={}", words.join(" or estimate=")))
        })
    }

    /// `3of100/1of50`: entries that are kept, of the elements of each segment.
    fn segments(&self) -> Result<Vec<Segment>, Error> {
        let wrong = || {
            self.word.wrong(
                self.at + self.key.len() + 1,
                "this is no list of segments".into(),
                "<entries>of<elements>/...",
            )
        };
        let one = |text: &str| {
            let (k, elements) = text.split_once("of")?;
            Some(Segment { elements: elements.parse().ok()?, k: k.parse().ok()? })
        };
        self.value.unwrap_or_default().split('/').map(one).collect::<Option<_>>().ok_or_else(wrong)
    }
}

impl Display for Recipe {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        if self.is_none() {
            words.push("none".into());
        }
        words.extend(self.dct.map(|dct| {
            let block = (dct.side() != Dct::default().side()).then(|| format!("block={}", dct.side()));
            let tiles = dct.is_tiled().then(|| "tiles".into());
            word("dct", block.into_iter().chain(tiles).collect())
        }));
        words.extend(self.select.as_ref().map(|select| match self.warm_up {
            0 => words_of(select),
            steps => format!("{},warmup={steps}", words_of(select)),
        }));
        words.extend(self.factors.map(|codec| word("powersgd", codec.words())));
        words.extend(self.rotation.map(|rotation| {
            let usual = self.brought().unwrap_or_default();
            let block = (rotation.elements() != usual.elements()).then(|| format!("block={}", rotation.elements()));
            let signs = if rotation.is_own() { "own" } else { "common" };
            let own = (rotation.is_own() != usual.is_own()).then(|| signs.into());
            word("rotate", block.into_iter().chain(own).collect())
        }));
        words.extend(self.quantize.words().map(|(name, settings)| word(name, settings)));
        words.extend((self.entropy != Entropy::None).then(|| self.entropy.name().into()));
        words.extend(self.vote.then(|| "vote".into()));
        words.extend(self.random.map(|codec| word("randomk", codec.words())));
        let of_random = self.random.is_some_and(|codec| !codec.is_unbiased());
        let default = self.quantize.brings_feedback() || self.factors.is_some() || of_random;
        let Memory { feedback, beta, gamma, momentum, nesterov, unmasked, shift } = self.memory;
        let weights = [("beta", beta), ("gamma", gamma)].into_iter().filter(|(_, factor)| *factor != 1.0);
        let weights: Vec<_> = weights.map(|(name, factor)| format!("{name}={factor}")).collect();
        match shift {
            Some(Shift::Ef21) => words.push("ef21".into()),
            Some(Shift::Diana { alpha }) => {
                words.push(word("diana", alpha.map(|alpha| format!("alpha={alpha}")).into_iter().collect()));
            }
            None if feedback && (!weights.is_empty() || momentum.is_none() && !default) => {
                words.push(word("ef", weights));
            }
            None if !feedback && !self.is_none() && (default || momentum.is_some()) => words.push("noef".into()),
            None => {}
        }
        words.extend(momentum.map(|factor| format!("momentum={factor}")));
        words.extend(nesterov.then(|| "nesterov".into()));
        words.extend(unmasked.then(|| "unmasked".into()));
        words.extend(self.clip.map(|norm| format!("clip={norm}")));
        words.extend(self.peers.map(|norm| format!("peers:norm={norm}")));
        match self.algorithm {
            Algorithm::Gather => {}
            Algorithm::Tree => words.push("gtopk".into()),
            Algorithm::TwoPhase { from: 1 } => words.push("twophase".into()),
            Algorithm::TwoPhase { from } => words.push(format!("twophase:from={from}")),
        }
        if self.non_finite == NonFinite::Error {
            words.push("finite".into());
        }
        f.write_str(&words.join("+"))
    }
}

macro_rules! parsed {
    ($($(#[$doc:meta])* $file:ident, $codec:ident, $word:literal;)+) => {
        impl Word<'_> {
            /// The quantizer that stands here.
            fn quantizer(&self) -> Result<Quantize, Error> {
                Ok(match self.name {
                    $($word => self.settings::<crate::codec::$codec>()?.into(),)+
                    _ => Quantize::Exact,
                })
            }
        }
    };
}
quantizers!(parsed);

/// `a, b or c`.
fn listed(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => words.concat(),
    }
}
