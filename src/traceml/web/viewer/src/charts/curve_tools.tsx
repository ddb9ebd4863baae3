/** The controls over curves of learning: smoothing, and a logarithmic axis. */

import type { ComponentChildren } from "preact";
import { chooseCurves, MAX_SMOOTHING, useCurves } from "./curves";

/** `children`: further controls of the card. */
export function CurveTools({ children }: { children?: ComponentChildren }) {
  const { smoothing, isLog } = useCurves();
  return (
    <div class="curve-tools" role="group" aria-label="How curves are drawn">
      <label>
        Smoothing{" "}
        <input
          type="range"
          min={0}
          max={MAX_SMOOTHING}
          step={0.01}
          value={smoothing}
          aria-valuetext={smoothing > 0 ? `${smoothing}` : "off"}
          onInput={(event) => chooseCurves({ smoothing: Number(event.currentTarget.value) })}
        />
        <span class="curve-value">{smoothing > 0 ? smoothing.toFixed(2) : "off"}</span>
      </label>
      <label>
        <input
          type="checkbox"
          checked={isLog}
          onChange={(event) => chooseCurves({ isLog: event.currentTarget.checked })}
        />
        Log axis
      </label>
      {children}
    </div>
  );
}
