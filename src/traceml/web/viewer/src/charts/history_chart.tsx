/** A dot per run along commits or time, with levels and changes, as shapes that print by themselves. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { axisNumber, axisWords, localTime } from "../numbers";
import { runAddress } from "../place";
import type { ChangeCard, HistoryPage, HistoryPoint } from "../schema";
import { onRedraw } from "./canvas";
import { PaintingTip } from "./painting";

const HEIGHT = 370;
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 18, 60, 54];
const NARROW_PX = 560;
const LETTER_PX = 6.7; // of a label below the axis, about
const MARK_PX = 7.4; // of a label above the chart, about
const NEAR_PX = 16;
const MAX_TICKS = 12;
const ROWS = 2; // of labels above the chart

interface Properties {
  page: HistoryPage;
  base: string;
  title: string;
}

export function HistoryChart({ page, base, title }: Properties) {
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const [pointed, setPointed] = useState<number | null>(null);
  const tapped = useRef<number | null>(null);
  const scale = scaleOf(page, width);
  const find = (event: PointerEvent): number | null => {
    const box = frame.current!.getBoundingClientRect();
    return nearest(page.points, scale, event.clientX - box.left, event.clientY - box.top);
  };
  const open = (event: PointerEvent): void => {
    const found = find(event);
    // The first tap of a finger says which run it is, the second opens it.
    const isTold = event.pointerType !== "touch" || found === tapped.current;
    tapped.current = found;
    setPointed(found);
    if (found !== null && isTold && event.button === 0) {
      window.location.assign(runAddress(base, page.points[found]!.run));
    }
  };
  const radius = Math.max(2, Math.min(4.5, 0.4 * (scale.x(1) - scale.x(0))));
  return (
    <div
      ref={frame}
      class="history-chart"
      style={{ height: `${HEIGHT}px`, cursor: pointed === null ? "default" : "pointer" }}
      onPointerMove={(event) => setPointed(find(event))}
      onPointerUp={open}
      onPointerLeave={(event) => event.pointerType !== "touch" && setPointed(null)}
    >
      <svg width={width} height={HEIGHT} role="img" aria-label={`${title}; the table below has the runs`}>
        <Grid page={page} scale={scale} />
        {page.changes.map((change) => (
          <Band key={change.place} change={change} scale={scale} />
        ))}
        {page.points.map(({ low, high }, place) =>
          low === null || high === null ? null : (
            <line
              key={place}
              class="history-interval"
              x1={scale.x(place)}
              x2={scale.x(place)}
              y1={scale.y(low)}
              y2={scale.y(high)}
            />
          ),
        )}
        {page.points.map((point, place) => (
          <circle
            key={place}
            class={`history-dot${point.is_dirty ? " is-dirty" : ""}`}
            cx={scale.x(place)}
            cy={scale.y(point.value)}
            r={place === pointed ? radius + 2 : radius}
          />
        ))}
        {page.levels.map((level) => (
          <line
            key={level.first}
            class="history-level"
            x1={scale.x(level.first - 0.5)}
            x2={scale.x(level.last + 0.5)}
            y1={scale.y(level.value)}
            y2={scale.y(level.value)}
          >
            <title>{level.text}</title>
          </line>
        ))}
        <Marks changes={page.changes} scale={scale} />
      </svg>
      {pointed !== null && <Tip point={page.points[pointed]!} place={pointed} scale={scale} metric={page.metric} />}
    </div>
  );
}

/** As wide as its place, on paper too. */
function useWidth(frame: { current: HTMLDivElement | null }): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measure = (): void => setWidth(Math.round(frame.current!.getBoundingClientRect().width));
    const observer = new ResizeObserver(measure);
    observer.observe(frame.current!);
    const forget = onRedraw(measure);
    measure();
    return () => {
      observer.disconnect();
      forget();
    };
  }, []);
  return width;
}

interface ChartScale {
  width: number;
  /** Of a run's place, counted from 0; half a place is between two runs. */
  x: (place: number) => number;
  y: (value: number) => number;
  low: number;
  high: number;
}

function scaleOf({ points, y }: HistoryPage, width: number): ChartScale {
  const values = points.flatMap(({ value, low: least, high: most }) => [value, least ?? value, most ?? value]);
  const low = y.low ?? Math.min(...values);
  const high = y.high ?? Math.max(...values);
  const reach = high - low || 1;
  const inner = Math.max(1, width - LEFT - RIGHT);
  return {
    width,
    low,
    high: low + reach,
    x: (place) => LEFT + ((place + 0.5) / Math.max(1, points.length)) * inner,
    y: (value) => HEIGHT - BOTTOM - ((value - low) / reach) * (HEIGHT - TOP - BOTTOM),
  };
}

function Grid({ page, scale }: { page: HistoryPage; scale: ChartScale }) {
  const right = scale.width - RIGHT;
  return (
    <g class="points-tick">
      {valueTicks(scale).map((value) => (
        <g key={value}>
          <line x1={LEFT} x2={right} y1={scale.y(value)} y2={scale.y(value)} />
          <text x={LEFT - 8} y={scale.y(value) + 4} text-anchor="end">
            {axisNumber(value)}
          </text>
        </g>
      ))}
      {runTicks(page, scale).map(({ place, label }) => (
        <g key={place}>
          <line x1={scale.x(place)} x2={scale.x(place)} y1={HEIGHT - BOTTOM} y2={HEIGHT - BOTTOM + 5} />
          <text x={scale.x(place)} y={HEIGHT - BOTTOM + 19} text-anchor="middle">
            {label}
          </text>
        </g>
      ))}
      <text class="points-axis" x={right} y={HEIGHT - 10} text-anchor="end">
        {page.order === "commit" ? "commits, the newest at the right" : "runs, the newest at the right"}
      </text>
      <text class="points-axis" x={4} y={12}>
        {axisWords(page.y.label, page.y.unit)}
      </text>
    </g>
  );
}

function valueTicks({ low, high }: ChartScale): number[] {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((digit) => digit * power).find((one) => one >= rough)!;
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.min(MAX_TICKS, Math.floor(high / step + 1e-9) - first + 1);
  return Array.from({ length: Math.max(0, count) }, (_, place) =>
    Number(((first + place) * step).toPrecision(12)),
  );
}

interface RunTick {
  place: number;
  label: string;
}

/** Where a commit or a day begins, as far as there is room. */
function runTicks({ points, order }: HistoryPage, scale: ChartScale): RunTick[] {
  const labelOf = (point: HistoryPoint): string =>
    order === "commit" ? (point.commit ?? "").slice(0, 7) : localTime(point.started_unix_s, "").slice(0, 10);
  const found: RunTick[] = [];
  let end = -Infinity;
  points.forEach((point, place) => {
    const label = labelOf(point);
    const before = place === 0 ? "" : labelOf(points[place - 1]!);
    const half = (label.length * LETTER_PX) / 2;
    if (label === "" || label === before || scale.x(place) - half < end + 10) return;
    if (scale.x(place) + half > scale.width) return;
    end = scale.x(place) + half;
    found.push({ place, label });
  });
  return found;
}

/** Where a change may as well lie. */
function Band({ change, scale }: { change: ChangeCard; scale: ChartScale }) {
  const left = scale.x(change.earliest - 0.5);
  return (
    <g class={`tone-${change.tone}`}>
      {change.latest > change.earliest && (
        <rect
          class="history-band"
          x={left}
          y={TOP}
          width={scale.x(change.latest - 0.5) - left}
          height={HEIGHT - TOP - BOTTOM}
        />
      )}
      <line
        class="history-mark"
        x1={scale.x(change.place - 0.5)}
        x2={scale.x(change.place - 0.5)}
        y1={TOP - 4}
        y2={HEIGHT - BOTTOM}
      />
    </g>
  );
}

/** What the changes are, above the chart, as far as there is room. */
function Marks({ changes, scale }: { changes: readonly ChangeCard[]; scale: ChartScale }) {
  const ends = Array.from({ length: ROWS }, () => -Infinity);
  return (
    <g>
      {changes.map((change) => {
        const label = scale.width < NARROW_PX ? change.short_label : change.label;
        const half = (label.length * MARK_PX) / 2;
        const right = scale.width - half - 2;
        const x = Math.max(half + 2, Math.min(right, scale.x(change.place - 0.5)));
        const row = ends.findIndex((end) => x - half > end + 8);
        if (row === -1) return null;
        ends[row] = x + half;
        return (
          <text
            key={change.place}
            class={`history-label tone-${change.tone}`}
            x={x}
            y={TOP - 10 - 14 * row}
            text-anchor="middle"
          >
            {label}
          </text>
        );
      })}
    </g>
  );
}

interface TipProperties {
  point: HistoryPoint;
  place: number;
  scale: ChartScale;
  metric: string;
}

function Tip({ point, place, scale, metric }: TipProperties) {
  const rows: (readonly [string, string])[] = [
    [metric, point.text],
    ...(point.interval ? [["95 % interval", point.interval] as const] : []),
    ...(point.commit ? [["Commit", point.commit + (point.is_dirty ? ", with changes" : "")] as const] : []),
    ...(point.subject ? [["Subject", point.subject] as const] : []),
    ["Started", localTime(point.started_unix_s, "not known")],
  ];
  return (
    <PaintingTip
      x={scale.x(place)}
      y={scale.y(point.value)}
      width={scale.width}
      title={point.run}
      rows={rows}
    />
  );
}

function nearest(
  points: readonly HistoryPoint[],
  scale: ChartScale,
  x: number,
  y: number,
): number | null {
  let [best, distance] = [-1, NEAR_PX];
  points.forEach(({ value }, place) => {
    const away = Math.hypot(scale.x(place) - x, scale.y(value) - y);
    if (away < distance) [best, distance] = [place, away];
  });
  return best === -1 ? null : best;
}
