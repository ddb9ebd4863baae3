/** A cell per rank: a node is a column, and nodes stand beside each other in as many bands as the width needs. */

import { useCallback, useMemo, useState } from "preact/hooks";
import { written } from "../numbers";
import type { RankGrid } from "../schema";
import { useTheme } from "../theme";
import { ink } from "./axes";
import { heatColour, Ramp, scaleOf } from "./heatmap";
import { type Paint, Painting, type Size } from "./painting";

const LEAST_CELL_PX = 6; // narrower cells cannot be pointed at
const MOST_CELL_PX = 64;
const MOST_CELL_HEIGHT_PX = 22;
const LABEL_PX = 18; // the names above a band
const GAP_PX = 8; // below it
const NAME_PX = 6.5; // of a letter, about
const FEW_NODES = 16; // whose columns are wide

interface Pointed {
  node: number;
  place: number;
  x: number;
  y: number;
}

interface Layout {
  /** Of a cell; the gap to its neighbour is in it. */
  width: number;
  height: number;
  /** Nodes in a band. */
  across: number;
  bands: number;
  bandHeight: number;
}

export function RankGridView({ figure }: { figure: RankGrid }) {
  const theme = useTheme();
  const [width, setWidth] = useState(0);
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const scale = useMemo(() => scaleOf(figure), [figure]);
  const layout = useMemo(() => layoutOf(figure, width), [figure, width]);
  const { text } = ink(theme);
  const paint = useCallback<Paint>(
    (context) => paintCells(context, figure, layout, scale, text),
    [figure, layout, scale, text],
  );
  const paintOver = useCallback<Paint>(
    (context) => pointed && outline(context, layout, pointed, text),
    [layout, pointed, text],
  );
  const onSize = useCallback((size: Size) => setWidth(size.width), []);
  return (
    <>
      <Ramp figure={figure} scale={scale} />
      <div class="heat" role="img" aria-label={`${figure.title}: ${summaryOf(figure)}`}>
        <Painting
          height={layout.bands * layout.bandHeight}
          paint={paint}
          paintOver={paintOver}
          onSize={onSize}
          onMove={(x, y) => setPointed(cellAt(figure, layout, x, y))}
          onLeave={() => setPointed(null)}
        >
          {pointed && <CellTip figure={figure} pointed={pointed} width={width} />}
        </Painting>
      </div>
    </>
  );
}

function summaryOf({ nodes, ranks }: RankGrid): string {
  const all = ranks.reduce((sum, each) => sum + each.length, 0);
  return `${written(all)} ranks on ${written(nodes.length)} nodes; the table below has the slowest`;
}

function layoutOf({ nodes, ranks }: RankGrid, width: number): Layout {
  const most = Math.max(1, ...ranks.map((each) => each.length));
  const longest = Math.max(...nodes.slice(0, FEW_NODES).map((name) => name.length));
  const wanted = nodes.length <= FEW_NODES ? longest * NAME_PX + 6 : LEAST_CELL_PX;
  const even = Math.floor(width / Math.max(1, nodes.length));
  const widest = Math.max(MOST_CELL_PX, wanted);
  const cell = Math.max(LEAST_CELL_PX, Math.min(even, widest));
  const room = width > 0 ? Math.floor(width / cell) : nodes.length; // not measured yet: one band
  const across = Math.max(1, Math.min(nodes.length, room));
  const height = Math.min(MOST_CELL_HEIGHT_PX, Math.max(LEAST_CELL_PX, cell));
  const bandHeight = LABEL_PX + most * height + GAP_PX;
  return { width: cell, height, across, bands: Math.ceil(nodes.length / across), bandHeight };
}

function paintCells(
  context: CanvasRenderingContext2D,
  figure: RankGrid,
  layout: Layout,
  scale: ReturnType<typeof scaleOf>,
  text: string,
): void {
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "alphabetic";
  figure.nodes.forEach((_, node) => {
    const [left, top] = cornerOf(layout, node);
    figure.values[node]!.forEach((value, place) => {
      const y = top + place * layout.height;
      context.fillStyle = value === null ? text : heatColour(value, scale);
      if (value === null) context.globalAlpha = 0.15; // not measured
      context.fillRect(left, y, layout.width - 1, layout.height - 1);
      context.globalAlpha = 1;
    });
  });
  context.fillStyle = text;
  for (let band = 0; band < layout.bands; band++) paintNames(context, figure, layout, band);
}

/** Every node's name where there is room for it; else the first one's and the last one's of a band. */
function paintNames(
  context: CanvasRenderingContext2D,
  { nodes }: RankGrid,
  layout: Layout,
  band: number,
): void {
  const first = band * layout.across;
  const past = Math.min(first + layout.across, nodes.length);
  const y = band * layout.bandHeight + LABEL_PX - 5;
  const names = nodes.slice(first, past);
  const fits = names.every((name) => context.measureText(name).width <= layout.width - 4);
  if (fits) {
    names.forEach((name, place) => context.fillText(name, place * layout.width, y));
    return;
  }
  const words = past - first > 1 ? `${nodes[first]} … ${nodes[past - 1]}` : nodes[first]!;
  context.fillText(words, 0, y);
}

function cornerOf(layout: Layout, node: number): [number, number] {
  const band = Math.floor(node / layout.across);
  return [(node % layout.across) * layout.width, band * layout.bandHeight + LABEL_PX];
}

function outline(
  context: CanvasRenderingContext2D,
  layout: Layout,
  { node, place }: Pointed,
  text: string,
): void {
  const [left, top] = cornerOf(layout, node);
  context.strokeStyle = text;
  context.lineWidth = 2;
  context.strokeRect(left, top + place * layout.height, layout.width - 1, layout.height - 1);
}

function cellAt(figure: RankGrid, layout: Layout, x: number, y: number): Pointed | null {
  const column = Math.floor(x / layout.width);
  const band = Math.floor(y / layout.bandHeight);
  const place = Math.floor((y - band * layout.bandHeight - LABEL_PX) / layout.height);
  const node = band * layout.across + column;
  if (column < 0 || column >= layout.across || place < 0) return null;
  return place < (figure.ranks[node]?.length ?? 0) ? { node, place, x, y } : null;
}

function CellTip({ figure, pointed, width }: { figure: RankGrid; pointed: Pointed; width: number }) {
  const { node, place, x, y } = pointed;
  const value = figure.values[node]![place] ?? null;
  const side = x > width / 2 ? { right: `${width - x + 12}px` } : { left: `${x + 12}px` };
  return (
    <div class="tip-frame floating" style={{ ...side, top: `${y + 12}px` }}>
      <div class="tip-title">{`${figure.nodes[node]} · rank ${figure.ranks[node]![place]}`}</div>
      <div class="tip-row">
        <span class="tip-name">{figure.value.label}</span>
        <b>{value === null ? "not measured" : written(value, figure.value.unit)}</b>
      </div>
    </div>
  );
}
