//! scratch
#[derive(clap::Args)]
pub struct Options {}
#[derive(clap::Args)]
pub struct RankOptions {}
pub fn demo(_: Options) -> i32 { 0 }
pub fn rank(_: RankOptions) -> i32 { 0 }
