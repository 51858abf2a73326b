//! A codec, and a bucketed quantizer as a stage of a recipe.

use super::settings::Bucketed;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::EncodePlan;
use crate::wire::Entropy;

/// A compression codec: validated parameters that make plans.
pub trait Codec {
    /// The plan that encodes `n` elements of this type.
    ///
    /// # Errors
    /// The setting that is out of range ([`Error::Bits`], [`Error::Levels`], [`Error::Bucket`]), or [`Error::TooLong`].
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error>;
}

/// A setting that is a number: its name in a text, what it may be, and where it is.
pub(crate) type Number<'s> = (&'static str, &'static str, &'s mut Option<f64>);

/// A bucketed quantizer as a stage of a recipe.
pub(crate) trait Stage: Codec + Copy {
    /// What it is where its word stands alone.
    const PLAIN: Self;
    /// What may be set in a text: bits, levels, bucket, contractive, and flags of its own.
    const SETTINGS: &'static [&'static str];
    /// Those of them that name a format, of which one may stand.
    const FORMATS: &'static [&'static str] = &[];

    /// The settings that it shares with others.
    fn common(&mut self) -> &mut Bucketed;

    /// The name of its format, if it has one of several.
    fn format(&self) -> Option<&'static str> {
        None
    }

    /// Takes a word that sets more than a flag, and says whether it is one.
    fn take(&mut self, _word: &str) -> bool {
        false
    }

    /// The bucket that it has where none is set.
    fn usual_bucket(&self) -> Option<usize> {
        { Self::PLAIN }.common().bucket
    }

    /// Its own flags, by their names in a text, and whether they are set.
    fn flags(&mut self) -> Vec<(&'static str, &mut bool)> {
        Vec::new()
    }

    /// Its own numbers.
    fn numbers(&mut self) -> Vec<Number<'_>> {
        Vec::new()
    }

    /// Whether error feedback belongs to it, unless it is told otherwise.
    fn brings_feedback(&self) -> bool {
        false
    }

    /// Whether error feedback is on.
    fn has_feedback(&self) -> bool {
        false
    }

    /// How codes are packed.
    fn entropy(&self) -> Entropy {
        Entropy::None
    }

    /// With its codes packed so, if they can be.
    fn packed(self, _: Entropy) -> Self {
        self
    }

    /// Without feedback and packing, which are stages of their own.
    fn alone(self) -> Self {
        self
    }

    /// The settings as they stand in a text: each that differs from what the codec has without it, and the width.
    fn words(mut self) -> Vec<String> {
        let bucket = self.usual_bucket();
        let common = *self.common();
        let mut words = Vec::new();
        match common.levels {
            Some(levels) if Self::SETTINGS.contains(&"levels") => words.push(format!("levels={levels}")),
            _ if Self::SETTINGS.contains(&"bits") => words.push(format!("bits={}", common.bits)),
            _ => words.extend(self.format().map(Into::into)),
        }
        if common.bucket != bucket {
            words.push(common.bucket.map_or("bucket=whole".into(), |elements| format!("bucket={elements}")));
        }
        words.extend(common.scaled.then(|| "contractive".into()));
        let numbers = self.numbers();
        words.extend(numbers.into_iter().filter_map(|(name, _, set)| set.map(|number| format!("{name}={number}"))));
        words.extend(self.flags().into_iter().filter(|(_, set)| **set).map(|(name, _)| name.into()));
        words
    }
}
