//! What is measured: the published settings of each codec, and the widths between them.

use gradwire::{Codec, Dtype, EncodePlan, Error};
use gradwire_tests::cases::Case;
use gradwire_tests::oracle::Kind;

use super::schema::{Feedback, Settings, bucket_text};

/// A codec, by the name it is chosen with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Chosen {
    /// Levels of a bucket's norm.
    Qsgd,
    /// Levels between a bucket's minimum and maximum.
    Uniform,
    /// One bit, and a mean on each side of zero.
    OneBit,
}

/// Every setting, sorted by codec; of one codec where one is chosen.
pub(crate) fn cases(chosen: Option<Chosen>) -> Vec<Case> {
    use Kind::{OneBit, QsgdL2, QsgdMax, Uniform, UniformNearest};
    let mut cases = vec![Case::new(QsgdMax, 2, Some(128))];
    cases.extend((3..=8).map(|bits| Case::new(QsgdMax, bits, Some(512))));
    cases.push(Case::new(QsgdMax, 16, Some(8192)));
    cases.push(Case::new(QsgdMax, 4, None));
    cases.push(Case::new(QsgdL2, 2, Some(128)));
    cases.extend([4, 8].map(|bits| Case::new(QsgdL2, bits, Some(512))));
    cases.extend([1, 2, 3, 4, 6, 8].map(|bits| Case::new(Uniform, bits, Some(512))));
    cases.extend([4, 8].map(|bits| Case::new(UniformNearest, bits, Some(512))));
    cases.extend([Some(64), Some(512)].map(|bucket| Case::new(OneBit, 1, bucket)));
    cases.retain(|case| chosen.is_none_or(|c| c == codec(case.kind)));
    cases
}

fn codec(kind: Kind) -> Chosen {
    match kind {
        Kind::QsgdMax | Kind::QsgdL2 => Chosen::Qsgd,
        Kind::Uniform | Kind::UniformNearest => Chosen::Uniform,
        Kind::OneBit => Chosen::OneBit,
    }
}

/// The name of a codec and the variant of it that a series of the chart holds.
pub(crate) fn family(kind: Kind) -> &'static str {
    kind.name()
}

/// A setting in a few words.
pub(crate) fn label(case: &Case) -> String {
    format!("{} {} bit, bucket {}", family(case.kind), case.bits, bucket_text(case.bucket))
}

/// A setting, as the report says it.
pub(crate) fn describe(case: &Case, dtype: Dtype) -> Settings {
    let (norm, rounding) = match case.kind {
        Kind::QsgdMax => ("max", "stochastic"),
        Kind::QsgdL2 => ("l2", "stochastic"),
        Kind::Uniform => ("range", "stochastic"),
        Kind::UniformNearest => ("range", "nearest"),
        Kind::OneBit => ("means", "none"),
    };
    Settings {
        bits: case.bits,
        levels: case.levels,
        bucket: case.bucket,
        norm: norm.to_owned(),
        rounding: rounding.to_owned(),
        dtype: dtype.name().to_owned(),
    }
}

/// The plan with error feedback, in the form that the library admits; `None` where it admits neither.
pub(crate) fn feedback_plan(case: &Case, n: usize, dtype: Dtype) -> Result<Option<(EncodePlan, Feedback)>, Error> {
    if let Ok(plan) = case.codec().plan(n, dtype)?.with_feedback() {
        return Ok(Some((plan, Feedback::Plain)));
    }
    let contraction = Case { contractive: true, ..*case };
    Ok(contraction.codec().plan(n, dtype)?.with_feedback().ok().map(|plan| (plan, Feedback::Contractive)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_valid_and_stands_beside_its_family() {
        let all = cases(None);
        assert_eq!(all.len(), 22);
        for case in &all {
            assert!(case.codec().plan(1000, Dtype::F32).is_ok(), "{}", label(case));
        }
        let mut families: Vec<_> = all.iter().map(|c| family(c.kind)).collect();
        families.dedup();
        assert_eq!(families, Kind::ALL.map(Kind::name));
        assert_eq!(cases(Some(Chosen::Uniform)).len(), 8);
    }

    #[test]
    fn feedback_takes_the_form_that_the_library_admits() {
        let form = |kind, bits| {
            feedback_plan(&Case::new(kind, bits, Some(512)), 5000, Dtype::F32).unwrap().map(|(_, form)| form)
        };
        assert_eq!(form(Kind::QsgdMax, 8), Some(Feedback::Plain));
        assert_eq!(form(Kind::QsgdMax, 4), Some(Feedback::Contractive));
        assert_eq!(form(Kind::UniformNearest, 4), None);
    }
}
