/** Logged images, each with its name; they were decoded and scaled before they came here. */

import type { Picture } from "../schema";

/** Nothing but what the server made itself is ever an address of an image. */
const PNG = /^data:image\/png;base64,[A-Za-z0-9+/=]*$/;

export function Pictures({ pictures }: { pictures: readonly Picture[] }) {
  const shown = pictures.filter(({ source }) => PNG.test(source));
  if (shown.length === 0) return null;
  return (
    <div class="pictures">
      {shown.map((picture) => (
        <figure key={picture.id} class="picture">
          <img
            src={picture.source}
            width={picture.width}
            height={picture.height}
            alt={picture.title}
            loading="lazy"
          />
          <figcaption>
            {picture.title}
            {picture.caption && <span class="note"> {picture.caption}</span>}
          </figcaption>
        </figure>
      ))}
    </div>
  );
}
