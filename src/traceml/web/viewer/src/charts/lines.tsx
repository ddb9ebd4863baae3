/** Values over steps or time: lines, or areas that stand on one another. */

import { useMemo } from "preact/hooks";
import { written } from "../numbers";
import type { Axis, Limit, Lines, Series } from "../schema";
import { colourOf, type Theme, useTheme } from "../theme";
import {
  canZoom,
  draggedRange,
  extent,
  grid,
  ink,
  nearest,
  stepAxis,
  valueAxis,
  zoomControls,
} from "./axes";
import { bandOf, marksOf } from "./bands";
import { Canvas } from "./canvas";
import { type CurveChoice, smoothed, useCurves, usualDistance } from "./curves";
import type { Chart, Option } from "./engine";
import { useHidden } from "./hidden_runs";
import { Legend, letterOf, MANY } from "./legend";
import { stripsHeight, stripsOf } from "./spans";
import { tip } from "./tip";
import { type Range, useStepWindow } from "./zoom";

const SAMPLED_FROM = 2000; // fewer points are drawn as they are
const ROUND = new Set(["1", "2", "25", "5"]); // the digits of a step that one can count in
const AS_IT_IS: CurveChoice = { smoothing: 0, isLog: false };
const ON_LOG_AXIS: CurveChoice = { smoothing: 0, isLog: true };
const LIMIT_REACH = 2; // a limit further away than this would press the lines to the ground

export function LinesView({ figure }: { figure: Lines }) {
  const theme = useTheme();
  const steps = useStepWindow(figure.axis);
  const curves = useCurves();
  const [hidden, setHidden] = useHidden(isOverlaid(figure));
  const zooms = canZoom(figure);
  const drawn = zooms ? steps.refined(figure) : figure;
  const range = zooms ? steps.range : null;
  const whole = useMemo(() => extent(figure), [figure]);
  const choice = figure.is_curve ? curves : figure.is_log ? ON_LOG_AXIS : AS_IT_IS;
  const usual = useMemo(() => usualDistance(figure.at), [figure]);
  const option = useMemo(
    () => linesOption(drawn, whole, hidden, theme, choice, usual),
    [drawn, whole, hidden, theme, choice, usual],
  );
  const listen = (chart: Chart): void => {
    if (zooms) chart.on("datazoom", (event) => steps.look(draggedRange(event, chart)));
  };
  return (
    <>
      <Legend series={figure.series} hidden={hidden} onToggle={setHidden} />
      <Canvas
        option={option}
        height={(zooms ? 262 : 210) + stripsHeight(figure.spans, whole)}
        range={range}
        onReady={listen}
      />
      <FarLimits figure={figure} />
      {!choice.isLog && figure.cut && <p class="caption">{figure.cut}</p>}
      {choice.isLog && hasNoLog(figure) && (
        <p class="caption">Values of 0 and below have no place on a log axis.</p>
      )}
    </>
  );
}

function linesOption(
  figure: Lines,
  whole: Range,
  hidden: ReadonlySet<string>,
  theme: Theme,
  choice: CurveChoice,
  usual: number,
): Option {
  const series = figure.series.filter((one) => !hidden.has(one.name));
  const zooms = canZoom(figure);
  return {
    animation: false,
    grid: grid(zooms, stripsHeight(figure.spans, whole)),
    tooltip: {
      trigger: "axis",
      confine: true,
      className: "tip-frame",
      transitionDuration: 0,
      axisPointer: { lineStyle: { color: ink(theme).text } },
      formatter: (points: unknown) =>
        tipOf(figure, series, points, theme, (one) =>
          smoothed(one.at ?? figure.at, one.values, choice.smoothing, distanceOf(one, usual)),
        ),
    },
    xAxis: stepAxis(figure.x, whole, theme),
    yAxis: valueAxis(said(figure), theme, {
      ...(choice.isLog ? logBounds(series) : bounds(figure, series)),
      nameLocation: "end",
      nameGap: 12,
      nameTextStyle: {
        align: "left",
        padding: [0, 0, 0, -44],
        color: ink(theme).text,
        fontSize: 11,
      },
      splitNumber: 4,
    }),
    dataZoom: zooms ? zoomControls(whole, theme) : [],
    series: [
      ...(figure.stacked ? piled(series) : series).flatMap((one) =>
        curvesOf(one, figure, theme, choice, usual),
      ),
      ...series.flatMap((one) => bandOf(one, figure, choice.isLog, theme) ?? []),
      marksOf(figure.marks, whole, theme),
      limitsOf(figure, whole, theme),
      stripsOf(figure.spans, whole, theme),
    ],
  };
}

/**
 * Each series with those under it, the highest first: every area reaches down to the ground and the
 * next one covers it. Areas that the library stacks by itself gape where points lie close together.
 */
function piled(series: readonly Series[]): Series[] {
  let below: readonly (number | null)[] = [];
  const piles = series.map((one) => {
    below = one.values.map((value, index) => {
      const under = below[index] ?? null;
      return value === null && under === null ? null : (value ?? 0) + (under ?? 0);
    });
    return { ...one, values: below };
  });
  return piles.reverse();
}

/** Whether the series are different runs, each with steps of its own. */
function isOverlaid({ series, is_curve }: Lines): boolean {
  return is_curve && series.some((one) => one.at !== null);
}

/** An axis that the title has named already says its unit alone. */
function said({ title, y }: Lines): Axis {
  return y.label === title ? { ...y, label: "" } : y;
}

/** The values as they are, and where they are smoothed, faint behind the smooth line. */
function curvesOf(
  series: Series,
  figure: Lines,
  theme: Theme,
  { smoothing, isLog }: CurveChoice,
  usual: number,
): object[] {
  const values = isLog ? series.values.map(aboveZero) : series.values;
  const raw = lineOf({ ...series, values }, figure, theme);
  if (smoothing === 0) return [raw];
  const smooth = smoothed(series.at ?? figure.at, values, smoothing, distanceOf(series, usual));
  const faint = { color: colourOf(series.colour, theme), width: 1, opacity: 0.35 };
  return [
    { ...raw, lineStyle: faint },
    { ...lineOf({ ...series, values: smooth }, figure, theme), id: `${series.name}: smoothed` },
  ];
}

/** The distance of two points of a curve; one of another run may have its own. */
function distanceOf(series: Series, usual: number): number {
  return series.at === null ? usual : usualDistance(series.at);
}

/** From the least to the largest value above zero, those of the bands among them. */
function logBounds(series: readonly Series[]): object {
  let [least, most] = [Infinity, 0];
  for (const { values, low, high } of series) {
    for (const one of [values, low ?? [], high ?? []]) {
      for (const value of one) {
        if (value === null || value <= 0) continue;
        if (value < least) least = value;
        if (value > most) most = value;
      }
    }
  }
  if (most === 0) return { type: "log" };
  return least < most
    ? { type: "log", min: least, max: most }
    : { type: "log", min: least / 10, max: most * 10 };
}

function aboveZero(value: number | null): number | null {
  return value !== null && value > 0 ? value : null;
}

function hasNoLog({ series }: Lines): boolean {
  const isBelow = (value: number | null): boolean => value !== null && value <= 0;
  return series.some((one) => (one.low ?? one.values).some(isBelow));
}

function lineOf(series: Series, figure: Lines, theme: Theme): object {
  const colour = colourOf(series.colour, theme);
  const lone = lonely(series.values);
  return {
    id: series.name,
    name: series.name,
    type: "line",
    data: (series.at ?? figure.at).map((at, index) => [at, series.values[index] ?? null]),
    showSymbol: lone.size > 0,
    showAllSymbol: true,
    symbolSize: (_: unknown, { dataIndex }: { dataIndex: number }) => (lone.has(dataIndex) ? 5 : 0),
    emphasis: { disabled: true },
    ...(figure.stacked ? { areaStyle: { color: colour, opacity: 1, origin: "start" } } : {}),
    ...(!figure.stacked && lone.size === 0 && figure.at.length > SAMPLED_FROM
      ? { sampling: "lttb" }
      : {}),
    lineStyle: {
      color: colour,
      width: figure.stacked ? 0 : 1.6,
      type: series.dashed ? "dashed" : "solid",
    },
    itemStyle: { color: colour },
  };
}

/** Values with a gap on either side: no line leads to them, so that they need a mark. */
function lonely(values: readonly (number | null)[]): ReadonlySet<number> {
  const isGap = (index: number): boolean => (values[index] ?? null) === null;
  const found = new Set<number>();
  values.forEach((_, index) => {
    if (!isGap(index) && isGap(index - 1) && isGap(index + 1)) found.add(index);
  });
  return found;
}

/** Limits, on a series of their own: hiding a line takes none of them away. */
function limitsOf(figure: Lines, whole: Range, theme: Theme): object {
  return {
    id: "limits",
    type: "line",
    data: [[whole[0], null]],
    silent: true,
    markLine: {
      silent: true,
      symbol: "none",
      animation: false,
      data: nearLimits(figure).map((limit) => levelOf(limit, theme)),
    },
  };
}

function levelOf(limit: Limit, theme: Theme): object {
  const colour = colourOf(limit.tone, theme);
  return {
    yAxis: limit.value,
    lineStyle: { color: colour, type: "dashed", width: 1 },
    label: {
      formatter: () => limit.label,
      position: "insideEndTop",
      color: colour,
      fontSize: 11,
    },
  };
}

function top(figure: Lines): number {
  const sums = figure.at.map((_, index) => {
    const values = figure.series.map((series) => series.values[index] ?? 0);
    return figure.stacked ? values.reduce((sum, value) => sum + value, 0) : Math.max(...values);
  });
  return sums.reduce((most, sum) => Math.max(most, sum), 0);
}

function nearLimits(figure: Lines): readonly Limit[] {
  const reach = figure.y.high ?? LIMIT_REACH * top(figure);
  return figure.limits.filter((limit) => limit.value <= reach);
}

function bounds(figure: Lines, series: readonly Series[]): object {
  const { low, high } = figure.y;
  const limits = nearLimits(figure).map((limit) => limit.value);
  const reach = Math.max(...limits);
  const most = high ?? (limits.length > 0 && reach > top(figure) ? roundAbove(reach) : null);
  const least = low ?? (figure.stacked ? 0 : null);
  return {
    ...(least === null ? {} : { min: least }),
    ...(most === null || series.length === 0 ? {} : { max: most }),
    ...(least === null || most === null ? {} : { interval: evenly(least, most) }),
  };
}

/** A round step that leads from one end of an axis to the other without a rest, if there is one. */
function evenly(low: number, high: number): number {
  const steps = [4, 5, 3, 2].map((count) => (high - low) / count);
  const round = steps.filter((step) => ROUND.has(step.toPrecision(3).replace(/[.0]|e.*$/g, "")));
  const isOn = (step: number): boolean => Math.abs(low / step - Math.round(low / step)) < 1e-6;
  return round.find(isOn) ?? round[0] ?? (high - low) / 4;
}

/** The next round number: it is the topmost label of the axis. */
function roundAbove(value: number): number {
  const unit = 10 ** Math.floor(Math.log10(value));
  const digits = [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10];
  return unit * (digits.find((digit) => digit * unit > value) ?? 10);
}

/** A limit that lies out of the picture is said instead of drawn. */
function FarLimits({ figure }: { figure: Lines }) {
  const near = new Set(nearLimits(figure));
  const far = figure.limits.filter((limit) => !near.has(limit));
  if (far.length === 0) return null;
  const words = far.map((limit) => limit.label).join(" · ");
  return <p class="caption">{`Above the picture: ${words}`}</p>;
}

function tipOf(
  figure: Lines,
  series: readonly Series[],
  points: unknown,
  theme: Theme,
  smooth: (series: Series) => readonly (number | null)[],
): HTMLElement {
  const first = (points as readonly { dataIndex: number; axisValue?: unknown }[])[0];
  const unit = figure.y.unit;
  const place = isOverlaid(figure) ? Number(first?.axisValue) : null;
  const hasSmooth = (points as readonly { seriesId?: string }[]).some(({ seriesId }) =>
    seriesId?.endsWith(": smoothed"),
  );
  const isCrowded = place !== null && series.length > MANY;
  const rows = series.flatMap((one) => {
    const index = place === null ? (first?.dataIndex ?? 0) : indexAt(one, figure, place);
    if (index === null) return [];
    const colour = colourOf(one.colour, theme);
    if (isCrowded) {
      const value = hasSmooth ? smooth(one)[index] : one.values[index];
      return [{ name: letterOf(one.name), value: written(value, unit), colour }];
    }
    const found = [{ name: one.name, value: written(one.values[index], unit), colour }];
    const [low, high] = [one.low?.[index] ?? null, one.high?.[index] ?? null];
    if (low !== null && high !== null && low !== high) {
      const value = `${written(low, unit)} … ${written(high, unit)}`;
      found.push({ name: figure.band ?? "lowest … highest", value, colour: "transparent" });
    }
    if (figure.is_curve && hasSmooth) {
      const value = written(smooth(one)[index], unit);
      found.push({ name: "smoothed", value, colour: "transparent" });
    }
    return found;
  });
  if (figure.stacked) {
    const index = first?.dataIndex ?? 0;
    rows.reverse(); // as they stand on one another
    const sum = series.reduce((total, one) => total + (one.values[index] ?? 0), 0);
    rows.push({ name: "Together", value: written(sum, unit), colour: "transparent" });
  }
  const at = place === null ? figure.at[first?.dataIndex ?? 0] : Math.round(place);
  const smoothWords = isCrowded && hasSmooth ? ", smoothed" : "";
  return tip(`${figure.x.label} ${written(at, figure.x.unit)}${smoothWords}`, rows, isCrowded);
}

/** Which value a run has about there; `null` where its curve does not reach. */
function indexAt(series: Series, figure: Lines, place: number): number | null {
  const at = series.at ?? figure.at;
  const index = nearest(at, place);
  const reach = 1.5 * usualDistance(at);
  return Math.abs((at[index] ?? Infinity) - place) <= reach ? index : null;
}
