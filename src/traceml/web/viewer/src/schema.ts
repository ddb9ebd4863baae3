// The pages that the viewer draws. Made from the records and colours of figures/ by
//   python -m traceml.web.typescript > src/traceml/web/viewer/src/schema.ts
// An edit here is lost.

/** Which layer takes the time and the memory. */
export interface LayerTree {
  type: "layers";
  id: string;
  title: string;
  single: LayerRows;
  grouped: LayerRows | null;
  bars: readonly LayerBar[];
  flames: readonly string[];
  caption: string | null;
}

export type Tone = "good" | "info" | "warn" | "crit" | "muted";

export type RunState = "live" | "finished" | "failed" | "lost";

export type StepAxis = "steps" | "logged";

/** One number that is worth a place of its own. */
export interface Tile {
  label: string;
  value: string;
  note: string | null;
  tone: Tone | null;
}

/** A short piece of evidence. */
export interface Fact {
  label: string;
  value: string;
}

/** A line of a table; the first cell names it. */
export interface Row {
  cells: readonly string[];
  tone: Tone | null;
  link: string | null;
}

/** Cells as they are read. */
export interface Table {
  id: string;
  title: string;
  columns: readonly string[];
  rows: readonly Row[];
  note: string | null;
}

/** One of the things that a grid compares: a run. */
export interface GridColumn {
  label: string;
  title: string;
  link: string | null;
}

/** A value, and below it what there is to say about it. */
export interface GridCell {
  text: string;
  note: string | null;
  tone: Tone | null;
}

/** One quantity of all columns. */
export interface GridRow {
  name: string;
  cells: readonly GridCell[];
  differs: boolean;
}

/** Many rows of a few columns: the names stay in sight, and rows can be searched. */
export interface WideGrid {
  id: string;
  title: string;
  columns: readonly GridColumn[];
  rows: readonly GridRow[];
  note: string | null;
}

export type DiffOp = "same" | "added" | "removed" | "head";

/** Words inside of a line. */
export interface DiffPart {
  op: DiffOp;
  text: string;
}

/** A line of a difference; `parts` is its text word by word, where words are told apart. */
export interface DiffLine {
  op: DiffOp;
  text: string;
  parts: readonly DiffPart[];
}

/** What differs between two texts. */
export interface Diff {
  id: string;
  title: string;
  lines: readonly DiffLine[];
  note: string | null;
  is_open: boolean;
}

/** An image that was logged, decoded and scaled here, never the file itself. */
export interface Picture {
  id: string;
  title: string;
  source: string;
  width: number;
  height: number;
  caption: string | null;
}

/** A finding as the rail shows it. */
export interface FindingCard {
  section: string;
  kind: string;
  status: string;
  severity: Tone;
  summary: string;
  action: string | null;
  gain: string | null;
  since: string | null;
  ranks: readonly number[];
  evidence: readonly Fact[];
}

/** One direction of a figure. */
export interface Axis {
  label: string;
  unit: string;
  low: number | null;
  high: number | null;
}

/** One line or one stack of bars; `None` is a gap: not measured. */
export interface Series {
  name: string;
  colour: string;
  values: readonly (number | null)[];
  dashed: boolean;
  low: readonly (number | null)[] | null;
  high: readonly (number | null)[] | null;
  at: readonly number[] | null;
}

/** A finding on the horizontal axis, from where on it holds; `until` open: to the end. */
export interface Span {
  begin: number;
  until: number | null;
  label: string;
  tone: Tone;
}

/** Values on the horizontal axis that cannot be drawn: NaN, infinite. */
export interface Mark {
  begin: number;
  until: number;
  label: string;
}

/** A level that matters: a capacity, a threshold. */
export interface Limit {
  value: number;
  label: string;
  tone: Tone;
}

/** Values over steps or time. */
export interface Lines {
  type: "lines";
  id: string;
  title: string;
  x: Axis;
  y: Axis;
  at: readonly number[];
  series: readonly Series[];
  stacked: boolean;
  spans: readonly Span[];
  limits: readonly Limit[];
  caption: string | null;
  zooms: boolean;
  axis: StepAxis;
  marks: readonly Mark[];
  cut: string | null;
  is_curve: boolean;
  is_log: boolean;
  band: string | null;
}

/** Stacked bars, one per category, drawn from left to right. */
export interface Bars {
  type: "bars";
  id: string;
  title: string;
  categories: readonly string[];
  x: Axis;
  series: readonly Series[];
  caption: string | null;
}

/** A row per rank, a column per group of steps: a straggler is a stripe. */
export interface Heatmap {
  type: "heatmap";
  id: string;
  title: string;
  x: Axis;
  at: readonly number[];
  rows: readonly string[];
  values: readonly (readonly (number | null)[])[];
  value: Axis;
  caption: string | null;
  zooms: boolean;
  axis: StepAxis;
}

/** A cell per rank, those of a node above each other, node beside node: a slow node is a bright
column. */
export interface RankGrid {
  type: "rank_grid";
  id: string;
  title: string;
  nodes: readonly string[];
  ranks: readonly (readonly number[])[];
  values: readonly (readonly (number | null)[])[];
  value: Axis;
  caption: string | null;
}

/** One bar of a waterfall, from where the last one ended. */
export interface Change {
  name: string;
  value: number;
  text: string;
  colour: string;
  is_total: boolean;
}

/** How one total becomes another. */
export interface Waterfall {
  type: "waterfall";
  id: string;
  title: string;
  y: Axis;
  changes: readonly Change[];
  caption: string | null;
}

/** A part of a whole, and its own parts. */
export interface Branch {
  name: string;
  text: string;
  share: number;
  colour: string;
  parts: readonly Branch[];
}

/** Where the time of a step goes, part by part. */
export interface Tree {
  type: "tree";
  id: string;
  title: string;
  root: Branch;
  caption: string | null;
}

/** One thing in a plane. */
export interface Point {
  x: number;
  y: number;
  colour: string;
  label: string;
  note: string;
  is_filled: boolean;
}

/** Things in a plane of two quantities. */
export interface Points {
  type: "points";
  id: string;
  title: string;
  x: Axis;
  y: Axis;
  points: readonly Point[];
  key: readonly Series[];
  caption: string | null;
}

/** A call, or what calls are put under. */
export interface FlameBox {
  label: string;
  place: string;
  parent: number;
  value: number;
  colour: string;
  is_pale: boolean;
  words: string;
}

/** One way to look at the calls. */
export interface FlameView {
  id: string;
  label: string;
  title: string;
  boxes: readonly FlameBox[];
}

/** Which calls take the time. */
export interface FlameGraph {
  type: "flame";
  id: string;
  title: string;
  views: readonly FlameView[];
  caption: string | null;
}

export type Figure = Lines | Bars | Heatmap | RankGrid | Waterfall | Tree | Points | LayerTree | FlameGraph;

/** A card of a page: a diagnosis, its numbers, its pictures. */
export interface Part {
  id: string;
  title: string;
  note: string | null;
  finding: FindingCard | null;
  tiles: readonly Tile[];
  figures: readonly Figure[];
  tables: readonly Table[];
  printed: readonly string[];
  is_wide: boolean;
  has_lens: boolean;
  grids: readonly WideGrid[];
  diffs: readonly Diff[];
  pictures: readonly Picture[];
  further_curves: readonly string[];
}

/** Which run, and how far it is. */
export interface Head {
  name: string;
  state: RunState;
  state_words: string;
  command: string;
  started: string;
  elapsed: string;
  steps: string;
  throughput: string;
  ranks: string;
  steps_short: string;
  started_unix_s: number | null;
  remaining: string | null;
  progress: number | null;
}

/** The answer: read first. */
export interface Verdict {
  severity: Tone;
  status: string;
  why: string;
  next: string | null;
  gain: string | null;
}

/** Whose step is shown: the mean over the ranks, or one of them. */
export interface Lens {
  id: string;
  label: string;
}

/** One run, going on or over. */
export interface RunPage {
  type: "run";
  head: Head;
  verdict: Verdict;
  rail: readonly FindingCard[];
  parts: readonly Part[];
  lens: string;
  lenses: readonly Lens[];
  output: readonly string[] | null;
  notes: readonly string[];
}

export type ColumnKind = "name" | "status" | "verdict" | "number" | "text" | "moment" | "tags";

/** A column of the list of runs. */
export interface ListColumn {
  key: string;
  label: string;
  kind: ColumnKind;
  title: string;
  can_sort: boolean;
}

/** A run in the list of runs. */
export interface ListRow {
  name: string;
  state: RunState;
  severity: Tone;
  why: string;
  cells: readonly (string | number | null)[];
  tags: readonly string[];
  note: string | null;
}

/** Runs that have something in common, in the list of runs. */
export interface GroupRow {
  cells: readonly (string | number | null)[];
  count: number;
  names: readonly string[];
  filter: string;
}

/** A way to group the runs. */
export interface Grouping {
  key: string;
  label: string;
}

/** A part of the list of the runs under a logs folder, or of their groups. */
export interface RunsPage {
  type: "runs";
  folder: string;
  columns: readonly ListColumn[];
  total: number;
  run_count: number;
  offset: number;
  rows: readonly ListRow[];
  groups: readonly GroupRow[] | null;
  baseline: ListRow | null;
  groupings: readonly Grouping[];
  notes: readonly string[];
}

/** A column that could be shown. */
export interface ColumnChoice {
  key: string;
  label: string;
  doc: string;
}

/** The columns whose names contain some words; of many the first ones. */
export interface ColumnChoices {
  columns: readonly ColumnChoice[];
  total: number;
}

/** What changed between two runs, or two groups of runs. */
export interface ComparisonPage {
  type: "comparison";
  a: string;
  b: string;
  legend: readonly string[];
  verdict: Verdict;
  diagnosis: string | null;
  parts: readonly Part[];
  next: readonly string[];
  notes: readonly string[];
}

/** Three to twenty runs, each against the first. */
export interface ManyRunsPage {
  type: "many";
  title: string;
  verdict: Verdict;
  parts: readonly Part[];
  notes: readonly string[];
}

export type Page = RunPage | ComparisonPage | ManyRunsPage;

/** One quantity of every row; `None` is not measured. */
export interface LayerColumn {
  id: string;
  label: string;
  unit: string;
  decimals: number;
  whole: readonly (number | null)[];
  own: readonly (number | null)[] | null;
}

/** One layer, or all those whose names differ in a number alone. */
export interface LayerTreeRow {
  name: string;
  label: string;
  parent: number;
  kind: string;
  layers: number;
  bound: string;
  worst_rank: string;
}

/** The rows of a tree, and their numbers. */
export interface LayerRows {
  rows: readonly LayerTreeRow[];
  columns: readonly LayerColumn[];
}

/** A bar of every row, made of the values of some columns of one unit. */
export interface LayerBar {
  label: string;
  columns: readonly string[];
  colours: readonly string[];
}

export type ExploredKind = "number" | "moment" | "category";

/** One value of a column of words. */
export interface Category {
  label: string;
  condition: string;
}

/** One parameter, metric or fact of all runs. */
export interface ExploredColumn {
  name: string;
  label: string;
  kind: ExploredKind;
  values: readonly (number | null)[];
  unit: string;
  categories: readonly Category[];
  is_log: boolean;
  left_out: string | null;
}

/** A column that can be chosen. */
export interface OfferedColumn {
  name: string;
  label: string;
  section: string;
}

/** One number with its uncertainty. */
export interface EstimateRow {
  name: string;
  value: number | null;
  low: number | null;
  high: number | null;
  text: string;
  note: string | null;
  tone: Tone | null;
}

/** Numbers with their intervals, a row each. */
export interface Estimates {
  id: string;
  title: string;
  axis: Axis;
  rows: readonly EstimateRow[];
  is_bar: boolean;
  caption: string | null;
}

/** The runs with one value, or range of values, of each of two parameters. */
export interface ValueGridCell {
  value: number | null;
  text: string;
  note: string;
}

/** A metric over two parameters. */
export interface ValueGrid {
  id: string;
  title: string;
  down: string;
  across: string;
  rows: readonly string[];
  columns: readonly string[];
  cells: readonly (readonly ValueGridCell[])[];
  low: number;
  high: number;
  caption: string | null;
}

/** A metric over two numeric parameters, as a surface through the runs. */
export interface Contour {
  id: string;
  title: string;
  down: string;
  across: string;
  at_down: readonly number[];
  at_across: readonly number[];
  is_down_log: boolean;
  is_across_log: boolean;
  surface: readonly (readonly (number | null)[])[];
  levels: readonly number[];
  points: readonly (readonly number[])[];
  caption: string | null;
}

/** Which parameters a metric depends on. */
export interface WhatMatteredPage {
  metric: string;
  title: string;
  down: string | null;
  across: string | null;
  importance: Estimates | null;
  correlation: Estimates | null;
  along: readonly Estimates[];
  grid: ValueGrid | null;
  contour: Contour | null;
  warnings: readonly string[];
  notes: readonly string[];
}

export type Band = "range" | "interval";

/** The history of a metric, by group of runs. */
export interface GroupCurves {
  lines: Lines | null;
  notes: readonly string[];
  band: Band;
}

/** Charts over the runs that a filter lets through. */
export interface Exploration {
  filter: string;
  names: readonly string[];
  found: string;
  columns: readonly ExploredColumn[];
  choices: readonly OfferedColumn[];
  metric: string | null;
  group: readonly string[];
  axes: readonly string[];
  x: string | null;
  y: string | null;
  color: string | null;
  size: string | null;
  front: readonly number[];
  front_words: string | null;
  bars: Estimates | null;
  notes: readonly string[];
  advice: readonly string[];
}

export type RunOrder = "commit" | "time";

/** One run of the series, a dot of the chart and a row of the table. */
export interface HistoryPoint {
  run: string;
  value: number;
  text: string;
  low: number | null;
  high: number | null;
  interval: string | null;
  started_unix_s: number | null;
  commit: string | null;
  subject: string | null;
  is_dirty: boolean;
}

/** The mean of a stretch of runs without a change. */
export interface LevelLine {
  first: number;
  last: number;
  value: number;
  text: string;
}

/** A piece of what is known about a change. */
export interface ChangeFact {
  label: string;
  words: string;
  link: string | null;
}

/** A change of the level: a mark in the chart, and what is known about it. */
export interface ChangeCard {
  place: number;
  earliest: number;
  latest: number;
  tone: Tone;
  status: string;
  label: string;
  short_label: string;
  title: string;
  note: string;
  facts: readonly ChangeFact[];
  comparison: string;
}

/** A series of runs that can be chosen. */
export interface OfferedSeries {
  run: string;
  label: string;
}

/** A metric of one command along commits, or in time. */
export interface HistoryPage {
  found: string;
  verdict: Verdict;
  metric: string;
  order: RunOrder;
  y: Axis;
  points: readonly HistoryPoint[];
  levels: readonly LevelLine[];
  changes: readonly ChangeCard[];
  caption: string;
  series: readonly OfferedSeries[];
  choices: readonly OfferedColumn[];
  params: readonly OfferedColumn[];
  held_equal: readonly Fact[];
  tables: readonly Table[];
  notes: readonly string[];
}

export const GROUND = { light: "#ffffff", dark: "#161b22" } as const;

export const PALETTE = {
  "input": { light: "#f0581f", dark: "#f86a26" },
  "h2d": { light: "#723602", dark: "#eacc76" },
  "forward": { light: "#369bd9", dark: "#50c4fe" },
  "backward": { light: "#222f9c", dark: "#4278e5" },
  "optimizer": { light: "#37744a", dark: "#8dc39a" },
  "communication": { light: "#b01f89", dark: "#d768be" },
  "residual": { light: "#939393", dark: "#7c7c7c" },
  "between": { light: "#172126", dark: "#e8f2fc" },
  "series-1": { light: "#369bd9", dark: "#50c4fe" },
  "series-2": { light: "#f0581f", dark: "#f86a26" },
  "series-3": { light: "#37744a", dark: "#8dc39a" },
  "series-4": { light: "#b01f89", dark: "#d768be" },
  "series-5": { light: "#222f9c", dark: "#4278e5" },
  "series-6": { light: "#723602", dark: "#eacc76" },
  "series-7": { light: "#939393", dark: "#7c7c7c" },
  "series-8": { light: "#172126", dark: "#e8f2fc" },
  "good": { light: "#1a7346", dark: "#56c98d" },
  "info": { light: "#1f5fbf", dark: "#7ab7ff" },
  "warn": { light: "#8f5b00", dark: "#e8b339" },
  "crit": { light: "#c0251b", dark: "#ff8276" },
  "muted": { light: "#5b6572", dark: "#9aa5b1" },
  "compute": { light: "#2a65bb", dark: "#499ef2" },
  "step": { light: "#5b6572", dark: "#9aa5b1" },
  "median": { light: "#369bd9", dark: "#50c4fe" },
  "worst": { light: "#b8321a", dark: "#f86a26" },
  "least": { light: "#939393", dark: "#7c7c7c" },
  "a": { light: "#68717e", dark: "#8b95a3" },
  "b": { light: "#2447b8", dark: "#6ea8ff" },
  "better": { light: "#2a65bb", dark: "#57b0f5" },
  "worse": { light: "#c4450f", dark: "#f8823e" },
} as const;

export const HEAT = ["#0b1f3f", "#123a6b", "#1f5690", "#3672a3", "#578ca6", "#7ea6a1", "#a9bd96", "#d3cf83", "#f4de71", "#fff3a6"] as const;

export const RAMP = {
  light: ["#1d2b6b", "#5a2f94", "#96318f", "#c23d6c", "#d55a3a", "#c98206"],
  dark: ["#6f86ff", "#a98bff", "#dc8fee", "#ff9fbe", "#ffbd8f", "#ffe27a"],
} as const;
