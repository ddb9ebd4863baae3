/** A row per rank, a column per group of steps, painted as one picture: panning stays fluent. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { written } from "../numbers";
import { HEAT, type Heatmap, type RankGrid } from "../schema";
import { type Theme, useTheme } from "../theme";
import { canZoom, draggedRange, extent, grid, ink, nearest, stepAxis, zoomControls } from "./axes";
import { Canvas } from "./canvas";
import type { Chart, Option } from "./engine";
import { type Range, useStepWindow } from "./zoom";

const LEVELS = 256;
const RAMP = rampOf();
const ROW_PX = 22;
const MANY_ROWS = 24; // their names stand close together

export function HeatmapView({ figure }: { figure: Heatmap }) {
  const theme = useTheme();
  const steps = useStepWindow(figure.axis);
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const zooms = canZoom(figure);
  const drawn = zooms ? steps.refined(figure) : figure;
  const range = zooms ? steps.range : null;
  const whole = useMemo(() => extent(figure), [figure]);
  const scale = useMemo(() => scaleOf(figure), [figure]);
  const painter = useMemo(() => new Painter(drawn, scale), [drawn, scale]);
  const option = useMemo(
    () => heatOption(drawn, whole, painter, theme),
    [drawn, whole, painter, theme],
  );
  const latest = useRef(drawn);
  useEffect(() => void (latest.current = drawn), [drawn]);
  const listen = (chart: Chart): void => {
    chart.on("datazoom", (event) => steps.look(draggedRange(event, chart)));
    chart.getZr().on("mousemove", ({ offsetX, offsetY, event }) => {
      const isDragging = (event as unknown as MouseEvent).buttons !== 0;
      setPointed(isDragging ? null : pointedAt(chart, latest.current, offsetX, offsetY));
    });
    chart.getZr().on("globalout", () => setPointed(null));
  };
  return (
    <>
      <Ramp figure={figure} scale={scale} />
      <div class="heat">
        <Canvas option={option} height={heightOf(figure)} range={range} onReady={listen} />
        {pointed && <HeatTip figure={drawn} pointed={pointed} />}
      </div>
    </>
  );
}

function heightOf(figure: Heatmap): number {
  const rows = Math.min(Math.max(figure.rows.length * ROW_PX, 90), 320);
  return rows + 46 + (canZoom(figure) ? 22 : 0);
}

/** From the least to the most that a colour stands for. */
export function scaleOf(figure: Heatmap | RankGrid): Range {
  let [low, high] = [Infinity, -Infinity];
  for (const row of figure.values) {
    for (const value of row) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  const least = figure.value.low ?? low;
  const most = figure.value.high ?? high;
  return most > least ? [least, most] : [least, least + 1]; // all alike: all are little
}

/** Every level between the palette's few. */
function rampOf(): Uint8ClampedArray {
  const stops = HEAT.map(channels);
  const ramp = new Uint8ClampedArray(LEVELS * 3);
  for (let level = 0; level < LEVELS; level++) {
    const place = (level / (LEVELS - 1)) * (stops.length - 1);
    const from = stops[Math.floor(place)]!;
    const to = stops[Math.ceil(place)]!;
    for (let channel = 0; channel < 3; channel++) {
      ramp[level * 3 + channel] = from[channel]! + (to[channel]! - from[channel]!) * (place % 1);
    }
  }
  return ramp;
}

/** The colour of a value on a scale. */
export function heatColour(value: number, [low, high]: Range): string {
  const level = Math.max(0, Math.min(LEVELS - 1, Math.round(((value - low) / (high - low)) * (LEVELS - 1))));
  return `rgb(${RAMP.slice(level * 3, level * 3 + 3).join()})`;
}

function channels(hex: string): number[] {
  return [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
}

/** Paints the window's cells, one pixel per place and row; the picture is then stretched. */
class Painter {
  private readonly cells = document.createElement("canvas");
  private readonly picture = document.createElement("canvas");
  private readonly edges: Float64Array;

  constructor(
    private readonly figure: Heatmap,
    private readonly scale: Range,
  ) {
    const { at } = figure;
    this.edges = new Float64Array(at.length + 1); // half-way to the neighbours
    for (let index = 1; index < at.length; index++) {
      this.edges[index] = (at[index - 1]! + at[index]!) / 2;
    }
    this.edges[0] = at[0] ?? 0;
    this.edges[at.length] = at[at.length - 1] ?? 0;
    if (at.length === 1) {
      this.edges[0] = at[0]! - 0.5;
      this.edges[1] = at[0]! + 0.5;
    }
  }

  paint(window: Range, width: number, height: number): HTMLCanvasElement {
    const across = Math.max(1, Math.round(width));
    this.paintCells(window, across);
    this.picture.width = across;
    this.picture.height = Math.max(1, Math.round(height));
    const context = this.picture.getContext("2d")!;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.cells, 0, 0, this.picture.width, this.picture.height);
    return this.picture;
  }

  private paintCells(window: Range, across: number): void {
    const { values, rows } = this.figure;
    this.cells.width = across;
    this.cells.height = Math.max(1, rows.length);
    const context = this.cells.getContext("2d")!;
    const image = context.createImageData(across, Math.max(1, rows.length));
    const { data } = image;
    const [low, high] = this.scale;
    const perLevel = (LEVELS - 1) / (high - low);
    const perPixel = (window[1] - window[0]) / across;
    let column = 0;
    for (let x = 0; x < across; x++) {
      const begin = window[0] + x * perPixel;
      while (column < this.figure.at.length - 1 && this.edges[column + 1]! <= begin) column++;
      let past = column + 1;
      while (past < this.figure.at.length && this.edges[past]! < begin + perPixel) past++;
      for (let row = 0; row < values.length; row++) {
        const worst = mostOf(values[row]!, column, past);
        if (worst === null) continue; // not measured: the page shows through
        const level = Math.max(0, Math.min(LEVELS - 1, Math.round((worst - low) * perLevel)));
        const pixel = (row * across + x) * 4;
        data[pixel] = RAMP[level * 3]!;
        data[pixel + 1] = RAMP[level * 3 + 1]!;
        data[pixel + 2] = RAMP[level * 3 + 2]!;
        data[pixel + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
  }
}

/** The largest of the cells that share a pixel: a single slow one is not averaged away. */
function mostOf(values: readonly (number | null)[], begin: number, end: number): number | null {
  let most: number | null = null;
  for (let index = begin; index < end; index++) {
    const value = values[index] ?? null;
    if (value !== null && (most === null || value > most)) most = value;
  }
  return most;
}

interface Drawing {
  coordSys: { x: number; y: number; width: number; height: number };
}
interface Coordinates {
  coord: (place: readonly [number, number]) => [number, number];
}

function heatOption(figure: Heatmap, whole: Range, painter: Painter, theme: Theme): Option {
  const zooms = canZoom(figure);
  const { text } = ink(theme);
  return {
    animation: false,
    grid: { ...grid(zooms), top: 6 },
    xAxis: stepAxis(figure.x, whole, theme),
    yAxis: {
      type: "category",
      data: [...figure.rows],
      inverse: true,
      axisTick: { show: false },
      axisLine: { show: false },
      axisLabel: {
        color: text,
        fontSize: figure.rows.length > MANY_ROWS ? 9 : 11,
        width: 44,
        overflow: "truncate",
      },
    },
    dataZoom: zooms
      ? zoomControls(whole, theme).map((zoom) => ({ ...zoom, xAxisIndex: 0, filterMode: "none" }))
      : [],
    series: [
      {
        id: "cells",
        type: "custom",
        silent: true,
        clip: true,
        data: [[whole[0], 0]],
        renderItem: (drawing: unknown, api: unknown) =>
          pictureOf(drawing as Drawing, api as Coordinates, whole, painter),
      },
    ],
  };
}

function pictureOf(drawing: Drawing, api: Coordinates, whole: Range, painter: Painter): object {
  const { x, y, width, height } = drawing.coordSys;
  const first = api.coord([whole[0], 0])[0];
  const perStep = (api.coord([whole[1], 0])[0] - first) / (whole[1] - whole[0]);
  const begin = whole[0] + (x - first) / perStep;
  const ratio = window.devicePixelRatio || 1;
  const image = painter.paint([begin, begin + width / perStep], width * ratio, height * ratio);
  return { type: "image", style: { image, x, y, width, height } };
}

interface Pointed {
  x: number;
  y: number;
  column: number;
  row: number;
}

function pointedAt(chart: Chart, figure: Heatmap, x: number, y: number): Pointed | null {
  if (!chart.containPixel({ gridIndex: 0 }, [x, y])) return null;
  const [step, row] = chart.convertFromPixel({ gridIndex: 0 }, [x, y]) as [number, number];
  return { x, y, column: nearest(figure.at, step), row };
}

function HeatTip({ figure, pointed }: { figure: Heatmap; pointed: Pointed }) {
  const value = figure.values[pointed.row]?.[pointed.column] ?? null;
  const step = written(figure.at[pointed.column], figure.x.unit);
  const side =
    pointed.x > 240
      ? { right: `calc(100% - ${pointed.x - 12}px)` }
      : { left: `${pointed.x + 12}px` };
  return (
    <div class="tip-frame floating" style={{ ...side, top: `${pointed.y + 12}px` }}>
      <div class="tip-title">{`${figure.rows[pointed.row] ?? ""} · ${figure.x.label} ${step}`}</div>
      <div class="tip-row">
        <span class="tip-name">{figure.value.label}</span>
        <b>{value === null ? "not measured" : written(value, figure.value.unit)}</b>
      </div>
    </div>
  );
}

export function Ramp({ figure, scale }: { figure: Heatmap | RankGrid; scale: Range }) {
  const stops = [0, 1, 2, 3, 4, 5, 6, 7, 8].map((part) => heatColour(part, [0, 8]));
  const unit = figure.value.unit;
  return (
    <div class="ramp">
      <span>{figure.value.label}</span>
      <span>{written(rounded(scale[0]), unit)}</span>
      <span
        class="ramp-bar"
        style={{ background: `linear-gradient(90deg, ${stops.join(", ")})` }}
      />
      <span>{written(rounded(scale[1]), unit)}</span>
    </div>
  );
}

function rounded(value: number): number {
  return Number(value.toPrecision(3));
}
