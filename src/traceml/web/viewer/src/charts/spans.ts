/** Findings on the horizontal axis: a strip each above the picture, and a line where it begins. */

import type { Span } from "../schema";
import { colourOf, type Theme } from "../theme";
import type { Range } from "./zoom";

const TOP_PX = 4;
const STRIP_PX = 14;
const GAP_PX = 2;
const ONSET_PX = 24; // nearer to the axis than this a line would only cross its name

interface Laid {
  span: Span;
  end: number;
  line: number;
}

/** What the charting library hands to whoever draws an item. */
interface Drawing {
  dataIndex: number;
  coordSys: { x: number; y: number; width: number; height: number };
}
interface Coordinates {
  coord: (place: readonly [number, number]) => [number, number];
}

/** How much room the strips need. */
export function stripsHeight(spans: readonly Span[], whole: Range): number {
  const lines = Math.max(0, ...laidOut(spans, whole).map(({ line }) => line + 1));
  return lines * (STRIP_PX + GAP_PX);
}

export function stripsOf(spans: readonly Span[], whole: Range, theme: Theme): object {
  const laid = laidOut(spans, whole);
  return {
    id: "findings",
    type: "custom",
    silent: true,
    tooltip: { show: false },
    data: laid.map(({ span, end }) => [span.begin, end, null]),
    encode: { x: [0, 1], y: 2 },
    renderItem: (drawing: unknown, api: unknown) => {
      const { dataIndex, coordSys } = drawing as Drawing;
      const item = laid[dataIndex];
      return item ? stripOf(item, coordSys, api as Coordinates, theme) : null;
    },
  };
}

/** Each on the first line where it covers no other. */
function laidOut(spans: readonly Span[], whole: Range): Laid[] {
  const laid: Laid[] = [];
  for (const span of spans) {
    const end = span.until ?? whole[1];
    const taken = laid.filter((other) => span.begin < other.end && other.span.begin < end);
    let line = 0;
    while (taken.some((other) => other.line === line)) line++;
    laid.push({ span, end, line });
  }
  return laid;
}

function stripOf(
  { span, end, line }: Laid,
  plot: Drawing["coordSys"],
  { coord }: Coordinates,
  theme: Theme,
): object | null {
  const begin = coord([span.begin, 0])[0];
  const left = Math.max(begin, plot.x);
  const right = Math.min(coord([end, 0])[0], plot.x + plot.width);
  if (right <= left) return null;
  const fill = colourOf(span.tone, theme);
  const y = TOP_PX + line * (STRIP_PX + GAP_PX);
  const strip = {
    type: "rect",
    shape: { x: left, y, width: right - left, height: STRIP_PX, r: 3 },
    style: { fill, opacity: 0.16 },
  };
  const name = {
    type: "text",
    style: {
      x: left + 5,
      y: y + STRIP_PX / 2,
      text: span.label,
      fill,
      font: "bold 11px sans-serif",
      verticalAlign: "middle",
      width: Math.max(0, right - left - 8),
      overflow: "truncate",
    },
  };
  const onset = {
    type: "line",
    shape: { x1: left, y1: y + STRIP_PX, x2: left, y2: plot.y + plot.height },
    style: { stroke: fill, lineWidth: 1, lineDash: [3, 3] },
  };
  const isOnsetSeen = begin >= plot.x + ONSET_PX;
  return { type: "group", children: isOnsetSeen ? [strip, name, onset] : [strip, name] };
}
