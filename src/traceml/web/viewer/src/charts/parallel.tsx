/** Parallel coordinates: an axis per column, a line per run, and parts of axes that are marked. */

import { useCallback, useMemo, useRef, useState } from "preact/hooks";
import { type Brush, type Brushes, rangeBrush } from "../pieces/brushes";
import { wordsOf } from "../pieces/run_values";
import { GROUND } from "../schema";
import { colourOf, type Theme, useTheme } from "../theme";
import { ink } from "./axes";
import { haloed, type Paint, Painting, PaintingTip, type Size } from "./painting";
import type { RunColours } from "./run_colours";
import { canBeLog, type Scale } from "./scales";

const HEIGHT = 380;
const TOP = 56; // the names of the axes
const BOTTOM = 34; // below the axes: where runs without a value pass
const RAIL = 16; // how far below
const SIDE = 46;
const AXIS_PX = 96; // narrower, and the picture is scrolled
const NEAR_PX = 7;
const CLICK_PX = 4;
const DRAGGED_LINES = 1500; // painted while an axis is dragged over; all of them afterwards

interface Properties {
  scales: readonly Scale[];
  names: readonly string[];
  colours: RunColours;
  /** Which runs the brushes let through; `null`: all. */
  chosen: Uint8Array | null;
  brushes: Brushes;
  /** Whether an axis is being dragged over: what is painted has to follow the hand. */
  isDragging: boolean;
  onBrush: OnBrush;
  onLog: (name: string, isLog: boolean) => void;
  onMove: OnMove;
  onOpen: (run: number) => void;
}

/** An axis changes places with the one to its left (-1) or right. */
type OnMove = (name: string, by: -1 | 1) => void;

/** `isFinal`: the hand has let go. */
export type OnBrush = (name: string, brush: Brush | null, isFinal: boolean) => void;

interface Layout extends Size {
  x: (axis: number) => number;
  y: (place: number) => number;
  rail: number;
}

export function ParallelView(properties: Properties) {
  const { scales, names, colours, chosen, brushes, isDragging, onBrush, onLog, onMove, onOpen } =
    properties;
  const every = isDragging ? Math.ceil(names.length / DRAGGED_LINES) : 1;
  const theme = useTheme();
  const [size, setSize] = useState<Size>({ width: 0, height: HEIGHT });
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const tapped = useRef<number | null>(null);
  const layout = useMemo(() => layoutOf(size, scales.length), [size, scales.length]);
  const paint = useCallback<Paint>(
    (context, at) =>
      paintLines(context, layoutOf(at, scales.length), scales, colours, chosen, every, theme),
    [scales, colours, chosen, every, theme],
  );
  const paintOver = useCallback<Paint>(
    (context, at) => {
      if (pointed === null) return;
      const here = layoutOf(at, scales.length);
      context.lineWidth = 3;
      context.strokeStyle = colourOf("between", theme);
      context.beginPath();
      trace(context, here, scales, pointed.run);
      context.stroke();
    },
    [scales, pointed, theme],
  );
  const nearest = (x: number, y: number): Pointed | null =>
    nearestRun(layout, scales, chosen, x, y);
  return (
    <Painting
      height={HEIGHT}
      minWidth={Math.max(0, scales.length * AXIS_PX)}
      paint={paint}
      paintOver={paintOver}
      onSize={setSize}
      cursor={pointed === null ? "default" : "pointer"}
      onMove={(x, y) => setPointed(nearest(x, y))}
      onLeave={() => setPointed(null)}
      onUp={(x, y, event) => {
        if (!(event.target instanceof HTMLCanvasElement)) return;
        const found = nearest(x, y);
        // The first tap of a finger says which run it is, the second opens it.
        const isTold = event.pointerType !== "touch" || found?.run === tapped.current;
        if (found !== null && isTold) return onOpen(found.run);
        tapped.current = found?.run ?? null;
        setPointed(found);
      }}
    >
      {size.width > 0 &&
        scales.map((scale, axis) => (
          <AxisHandle
            key={scale.column.name}
            scale={scale}
            left={layout.x(axis)}
            brush={brushes.find(({ name }) => name === scale.column.name) ?? null}
            onBrush={onBrush}
            onLog={onLog}
            onMove={onMove}
            isFirst={axis === 0}
            isLast={axis === scales.length - 1}
          />
        ))}
      {pointed && (
        <PaintingTip
          x={pointed.x}
          y={pointed.y}
          width={size.width}
          title={names[pointed.run] ?? ""}
          rows={scales.map(({ column }) => [
            column.label,
            wordsOf(column, column.values[pointed.run]),
          ])}
        />
      )}
    </Painting>
  );
}

function layoutOf({ width, height }: Size, axes: number): Layout {
  const bottom = height - BOTTOM;
  const wide = Math.max(1, axes - 1);
  return {
    width,
    height,
    x: (axis) => (axes === 1 ? width / 2 : SIDE + (axis * (width - 2 * SIDE)) / wide),
    y: (place) => (Number.isNaN(place) ? bottom + RAIL : bottom - place * (bottom - TOP)),
    rail: bottom + RAIL,
  };
}

function trace(
  context: CanvasRenderingContext2D,
  layout: Layout,
  scales: readonly Scale[],
  run: number,
): void {
  scales.forEach((scale, axis) => {
    const [x, y] = [layout.x(axis), layout.y(scale.places[run]!)];
    if (axis === 0) context.moveTo(x, y);
    else context.lineTo(x, y);
  });
  if (scales.length === 1) context.lineTo(layout.x(0) + 10, layout.y(scales[0]!.places[run]!));
}

/** Those that a brush leaves out lie behind, in grey. */
function paintLines(
  context: CanvasRenderingContext2D,
  layout: Layout,
  scales: readonly Scale[],
  colours: RunColours,
  chosen: Uint8Array | null,
  every: number,
  theme: Theme,
): void {
  const { numbers } = colours;
  const count = numbers.length;
  context.lineWidth = count > 2000 ? 0.8 : 1.2;
  if (chosen !== null) {
    context.globalAlpha = Math.max(0.15, strength(count) / 3);
    context.strokeStyle = ink(theme).line;
    for (let run = 0; run < count; run += every) {
      if (chosen[run] === 0) line(context, layout, scales, run);
    }
  }
  const drawn = (chosen === null ? count : chosen.reduce((sum, one) => sum + one, 0)) / every;
  context.globalAlpha = strength(drawn);
  // In the order of the runs: in that of the colours the last one would cover all others.
  for (let run = 0; run < count; run += every) {
    if (chosen?.[run] === 0) continue;
    context.strokeStyle = colours.colours[numbers[run]!]!;
    line(context, layout, scales, run);
  }
  context.globalAlpha = 1;
  paintAxes(context, layout, scales, theme);
}

function line(
  context: CanvasRenderingContext2D,
  layout: Layout,
  scales: readonly Scale[],
  run: number,
): void {
  context.beginPath();
  trace(context, layout, scales, run);
  context.stroke();
}

/** Of many lines each is fainter, so that where they lie close together shows. */
function strength(count: number): number {
  return Math.max(0.12, Math.min(0.85, 12 / Math.sqrt(count || 1)));
}

function paintAxes(
  context: CanvasRenderingContext2D,
  layout: Layout,
  scales: readonly Scale[],
  theme: Theme,
): void {
  const { text } = ink(theme);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  scales.forEach((scale, axis) => {
    const x = layout.x(axis);
    context.strokeStyle = text;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, layout.y(1));
    context.lineTo(x, layout.y(0));
    context.stroke();
    const isLast = axis > 0 && axis === scales.length - 1;
    context.textAlign = isLast ? "right" : "left";
    let last = Infinity;
    for (const { at, label } of scale.ticks) {
      const y = layout.y(at);
      if (last - y < 12) continue; // the labels of many categories would cover each other
      last = y;
      haloed(context, label, x + (isLast ? -6 : 6), y, GROUND[theme], text);
    }
    if (scale.places.some(Number.isNaN)) {
      context.textAlign = isLast ? "right" : "left";
      haloed(context, "no value", x + (isLast ? -6 : 6), layout.rail, GROUND[theme], text);
      context.beginPath();
      context.arc(x, layout.rail, 2.5, 0, 7);
      context.fillStyle = text;
      context.fill();
    }
  });
}

interface Pointed {
  run: number;
  x: number;
  y: number;
}

/** The line that passes closest to a point. */
function nearestRun(
  layout: Layout,
  scales: readonly Scale[],
  chosen: Uint8Array | null,
  x: number,
  y: number,
): Pointed | null {
  let axis = 0;
  while (axis < scales.length - 2 && layout.x(axis + 1) < x) axis++;
  const [from, to] = [scales[axis], scales[axis + 1] ?? scales[axis]];
  if (from === undefined || to === undefined) return null;
  const width = layout.x(axis + 1) - layout.x(axis);
  const share = scales.length === 1 ? 0 : (x - layout.x(axis)) / width;
  if (share < -0.05 || share > 1.05) return null;
  let [best, distance] = [-1, NEAR_PX];
  for (let run = 0; run < from.places.length; run++) {
    if (chosen?.[run] === 0) continue;
    const [begin, end] = [layout.y(from.places[run]!), layout.y(to.places[run]!)];
    const away = Math.abs(begin + (end - begin) * share - y);
    if (away < distance) [best, distance] = [run, away];
  }
  return best === -1 ? null : { run: best, x, y };
}

interface HandleProperties {
  scale: Scale;
  left: number;
  brush: Brush | null;
  onBrush: OnBrush;
  onLog: (name: string, isLog: boolean) => void;
  onMove: OnMove;
  isFirst: boolean;
  isLast: boolean;
}

/** The name of an axis, and the strip along it that is dragged over. */
function AxisHandle(properties: HandleProperties) {
  const { scale, left, brush, onBrush, onLog, onMove, isFirst, isLast } = properties;
  const { column } = scale;
  const begun = useRef<number | null>(null);
  const strip = useRef<HTMLDivElement>(null);
  const placeAt = (event: PointerEvent): number => {
    const box = strip.current!.getBoundingClientRect();
    return Math.max(0, Math.min(1, 1 - (event.clientY - box.top) / box.height));
  };
  const move = (event: PointerEvent): void => {
    if (begun.current === null) return;
    const here = placeAt(event);
    const isClick = Math.abs(here - begun.current) * (HEIGHT - TOP - BOTTOM) < CLICK_PX;
    const isFinal = event.type === "pointerup";
    if (!isClick) onBrush(column.name, brushBetween(scale, begun.current, here), isFinal);
    else if (isFinal) onBrush(column.name, clickBrush(scale, here), true);
    if (isFinal) begun.current = null;
  };
  const range = brush === null ? null : brushPlaces(scale, brush);
  return (
    <>
      <div class="axis-name" style={{ left: `${left}px` }}>
        <span title={column.name}>{column.label}</span>
        <span class="axis-tools">
          {!isFirst && (
            <button
              type="button"
              class="quiet"
              aria-label={`Move ${column.label} to the left`}
              onClick={() => onMove(column.name, -1)}
            >
              ‹
            </button>
          )}
          {canBeLog(column) ? (
            <button
              type="button"
              class="quiet"
              aria-pressed={scale.isLog}
              aria-label={`${column.label}: ${scale.isLog ? "logarithmic" : "linear"} axis`}
              onClick={() => onLog(column.name, !scale.isLog)}
            >
              {scale.isLog ? "log" : "linear"}
              {column.unit && `, ${column.unit}`}
            </button>
          ) : (
            <span class="hint">{column.kind === "category" ? "words" : column.unit}</span>
          )}
          {!isLast && (
            <button
              type="button"
              class="quiet"
              aria-label={`Move ${column.label} to the right`}
              onClick={() => onMove(column.name, 1)}
            >
              ›
            </button>
          )}
        </span>
      </div>
      <div
        ref={strip}
        class="axis-strip"
        title="Drag along the axis to keep a part of it"
        style={{ left: `${left}px`, top: `${TOP}px`, bottom: `${BOTTOM}px` }}
        onPointerDown={(event) => {
          strip.current!.setPointerCapture(event.pointerId);
          begun.current = placeAt(event);
        }}
        onPointerMove={move}
        onPointerUp={move}
        onPointerCancel={() => (begun.current = null)}
      >
        {range?.map(([low, high]) => (
          <div
            key={low}
            class="axis-brush"
            style={{ bottom: `${100 * low}%`, height: `${100 * Math.max(0.004, high - low)}%` }}
          />
        ))}
      </div>
    </>
  );
}

function brushBetween(scale: Scale, one: number, other: number): Brush {
  const { column } = scale;
  const [low, high] = [Math.min(one, other), Math.max(one, other)];
  if (column.kind !== "category") {
    // The very ends of an axis are those of the values, whatever rounding does to them.
    const least = low <= 0.002 ? -Infinity : scale.valueAt(low);
    return rangeBrush(column, least, high >= 0.998 ? Infinity : scale.valueAt(high));
  }
  const inside = column.categories.filter((_, index) => {
    const place = scale.placeOf(index);
    return place >= low && place <= high;
  });
  return { name: column.name, labels: inside.map(({ label }) => label) };
}

/** A click on a category keeps it alone; anywhere else it takes the brush away. */
function clickBrush(scale: Scale, place: number): Brush | null {
  if (scale.column.kind !== "category") return null;
  const category = scale.column.categories[Math.round(scale.valueAt(place))];
  return category ? { name: scale.column.name, labels: [category.label] } : null;
}

/** The parts of the axis that a brush covers. */
function brushPlaces(scale: Scale, brush: Brush): [number, number][] {
  if ("labels" in brush) {
    const half = 0.5 / Math.max(1, scale.column.categories.length);
    return scale.column.categories.flatMap(({ label }, index) => {
      if (!brush.labels.includes(label)) return [];
      const place = scale.placeOf(index);
      return [[place - half, place + half] as [number, number]];
    });
  }
  const place = (value: number | null, open: number): number => {
    if (value === null) return open;
    const found = scale.placeOf(value);
    return Number.isNaN(found) ? 0 : Math.max(0, Math.min(1, found));
  };
  return [[place(brush.low, 0), place(brush.high, 1)]];
}

/** Which columns have runs without a place on their axes, in words. */
export function leftOutWords(scales: readonly Scale[]): string[] {
  const said = new Set<string>();
  for (const { column, isLog } of scales) {
    if (column.left_out !== null) said.add(`${column.label}: ${column.left_out}.`);
    if (isLog && column.values.some((value) => value !== null && value <= 0)) {
      said.add(`${column.label}: values of 0 and below have no place on a log axis.`);
    }
  }
  return [...said];
}

