//! The quantizers, as a table.

/// Hands the quantizers to a macro: file, type, and word in a text. One that is not here is of no recipe.
macro_rules! quantizers {
    ($then:ident) => {
        $then! {
            /// QSGD.
            qsgd, Qsgd, "qsgd";
            /// Uniform, between minimum and maximum.
            uniform, Uniform, "uniform";
            /// 1-bit SGD.
            onebit, OneBit, "onebit";
            /// A cast to a small floating-point format.
            float, Float, "float";
            /// Signs with a scale.
            sign, Sign, "sign";
            /// Ternary codes.
            ternary, Ternary, "ternary";
            /// A dynamic tree.
            tree, Tree, "tree";
            /// Powers of two.
            natural, Natural, "natural";
            /// Signs with the scale of DRIVE.
            drive, Drive, "drive";
            /// Centroids of a normal distribution with the scale of EDEN.
            eden, Eden, "eden";
            /// Quantiles.
            quantile, Quantile, "quantile";
        }
    };
}
pub(crate) use quantizers;
