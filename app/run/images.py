"""Images on their way: the user's to the tools, those of the tools to the model. Pure.

The user's are `image_1`, `image_2`, …: the model names them, tools get the data, events see the name.
"""

import re
from collections.abc import Iterable, Sequence

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.messages import Message

_IMAGE_KEYS = frozenset({"image", "image_url", "input_image"})
_PICTURE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_MOST_PICTURES = 8
"""Of one round: each costs the model about as much as a page of text."""
NO_PICTURES: Message = {
    "role": "user",
    "content": "[Images of the tools were left out here, because the conversation is longer than the model takes.]",
}
_REFERENCE = re.compile(r"image_([1-9][0-9]{0,3})")


def images_from_messages(messages: Iterable[Message]) -> tuple[str, ...]:
    """Collect the URLs (`data:` or https) of all images in the user's messages, in order of appearance."""
    urls: list[str] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") != "user" or not is_array(content):
            continue
        for part in content:
            if is_object(part) and part.get("type") == "image_url":
                image = part.get("image_url")
                url = image.get("url") if is_object(image) else image
                if isinstance(url, str):
                    urls.append(url)
    return tuple(urls)


def resolve_images(arguments: JsonObject, images: Sequence[str]) -> JsonObject:
    """Replace references such as `image_1` under `image`, `image_url` or `input_image` by the image's URL.

    Looks at every depth and into lists; a reference to an image that is not there stays as it is.
    """
    if not images:
        return arguments
    return {key: _resolved(value, images, is_image=key in _IMAGE_KEYS) for key, value in arguments.items()}


def _resolved(value: Json, images: Sequence[str], *, is_image: bool) -> Json:
    if isinstance(value, str):
        found = _REFERENCE.fullmatch(value.strip()) if is_image else None
        return images[int(found[1]) - 1] if found and int(found[1]) <= len(images) else value
    if is_object(value):
        inner = ((key, item, is_image or key in _IMAGE_KEYS) for key, item in value.items())
        return {key: _resolved(item, images, is_image=is_one) for key, item, is_one in inner}
    if is_array(value):
        return [_resolved(item, images, is_image=is_image) for item in value]
    return value


def pictures_from_outputs(outputs: Iterable[JsonObject]) -> tuple[str, ...]:
    """Collect what tools gave back as images that models can see, as `data:` URLs."""
    urls: list[str] = []
    for output in outputs:
        blocks: Json = output.get("content")
        for block in blocks if is_array(blocks) else ():
            if is_object(block) and block.get("type") == "image":
                kind, data = block.get("mimeType"), block.get("data")
                if kind in _PICTURE_TYPES and isinstance(data, str) and data:
                    urls.append(f"data:{kind};base64,{data}")
    return tuple(urls)


def pictures_message(pictures: Sequence[str]) -> Message:
    """Show the pictures of a round to the model. A user message: tool messages may hold text only."""
    shown = pictures[:_MOST_PICTURES]
    left_out = f" {len(pictures) - len(shown)} more were left out." if len(pictures) > len(shown) else ""
    text = f"The images that the tools gave back, in the order of their results.{left_out}"
    images = [{"type": "image_url", "image_url": {"url": url}} for url in shown]
    return {"role": "user", "content": [{"type": "text", "text": text}, *images]}
