//! `wootz plan`

use crate::args::PlanArgs;
use crate::{common, output};

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let model = common::open_model(&args.model)?;
    let plan = wootz::plan(&model, &args.backend, args.tokens, args.span)?;
    output::print(&plan.to_string())
}
