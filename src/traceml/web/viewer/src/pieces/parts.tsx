/** Lays the cards out: wide ones across the page, the others in two columns between them. */

import type { Figure, Part } from "../schema";
import { Columns, packed } from "./columns";
import { isEmpty, PartView } from "./part";

const HOLE = 160;

export function Parts({ parts }: { parts: readonly Part[] }) {
  const shown = parts.filter((part) => !isEmpty(part));
  return (
    <>
      {bandsOf(shown)
        .flatMap(withoutHole)
        .map((band) => (
          <Columns
            key={band[0]!.id}
            items={band}
            count={2}
            height={heightOf}
            keyOf={({ id }) => id}
          >
            {(part) => <PartView part={part} />}
          </Columns>
        ))}
    </>
  );
}

/** A wide card by itself, and those between two wide ones together. */
function bandsOf(parts: readonly Part[]): Part[][] {
  const bands: Part[][] = [];
  let isOpen = false;
  for (const part of parts) {
    if (isOpen && !part.is_wide) bands[bands.length - 1]!.push(part);
    else bands.push([part]);
    isOpen = !part.is_wide;
  }
  return bands;
}

/** The last card goes across the page where it would leave a hole beside itself. */
function withoutHole(band: Part[]): Part[][] {
  const last = band[band.length - 1]!;
  if (band.length < 2) return [band];
  const heights = packed(band, 2, heightOf).map((column) => column.height);
  const hole = Math.abs(heights[0]! - heights[1]!);
  return hole > 0.6 * heightOf(last) && hole > HOLE ? [band.slice(0, -1), [last]] : [band];
}

/** About how many pixels tall. */
function heightOf({ tiles, figures, tables, printed, grids, diffs, pictures }: Part): number {
  const charts = figures.reduce((sum, figure) => sum + pictureHeightOf(figure), 0);
  const rows = tables.reduce((sum, table) => sum + 66 + 30 * table.rows.length, 0);
  const lines = grids.reduce((sum, grid) => sum + 100 + 34 * grid.rows.length, 0);
  const images = pictures.length > 0 ? 240 * Math.ceil(pictures.length / 3) : 0;
  const others = lines + images + 30 * diffs.length + 19 * printed.length;
  return 70 + 85 * Math.ceil(tiles.length / 4) + charts + rows + others;
}

function pictureHeightOf(figure: Figure): number {
  switch (figure.type) {
    case "lines":
      return figure.zooms ? 350 : 300;
    case "heatmap":
    case "rank_grid":
      return 420;
    case "bars":
      return 100 + 23 * figure.categories.length;
    case "waterfall":
      return 80 + 23 * figure.changes.length;
    case "tree":
      return 260;
    case "layers":
      return 640;
    case "flame":
      return 420;
    case "points":
      return 360;
  }
}
