"""The example's prompts: templates x topics, written for this project, split into train and held-out by topic.

Splitting by topic, not by prompt, keeps every answer about a held-out topic out of the training text.
"""

TEMPLATES = (
    "What is {topic}?",
    "Explain {topic} in simple terms.",
    "Give me three facts about {topic}.",
    "List five reasons why {topic} matters.",
    "Write a short paragraph about {topic}.",
    "How would you teach a child about {topic}?",
    "What are the advantages and disadvantages of {topic}?",
    "Write a short story about {topic}.",
    "Summarise the history of {topic}.",
    "What are common misconceptions about {topic}?",
    "Compare {topic} with something similar.",
    "Write four questions and answers about {topic}.",
    "Describe {topic} in one sentence, then in three sentences.",
    "What tools or materials do people use for {topic}?",
    "Write a poem of eight lines about {topic}.",
    "How does {topic} affect daily life?",
    "Write an email to a friend about {topic}.",
    "What should a beginner know about {topic}?",
    "Make a plan for learning about {topic} in one week.",
    "How has {topic} changed in the last hundred years?",
    "Write a dialogue between two people about {topic}.",
    "What is the most surprising thing about {topic}?",
    "Give step-by-step advice for someone interested in {topic}.",
    "Why do some people dislike {topic}?",
    "Write a Python function that has something to do with {topic}.",
    "Write a product description inspired by {topic}.",
    "Name some famous examples of {topic}.",
    "What jobs are connected with {topic}?",
)

TRAIN_TOPICS = (
    "photosynthesis", "volcanoes", "the water cycle", "gravity", "black holes", "bridges", "bicycles", "bread baking",
    "coffee", "chess", "the piano", "jazz music", "oil painting", "photography", "pottery", "gardening", "bees",
    "whales", "dinosaurs", "penguins", "rainforests", "deserts", "rivers", "mountains", "earthquakes", "weather forecasts",
    "clouds", "the Moon", "satellites", "telescopes", "microscopes", "vaccines", "the human heart", "sleep", "dreams",
    "memory", "meditation", "running", "swimming", "football", "the Olympic Games", "sailing", "trains", "airports",
    "electric cars", "batteries", "solar power", "wind turbines", "nuclear power", "recycling", "plastic", "glass",
    "steel", "paper", "printing", "libraries", "novels", "poetry", "theatre", "cinema", "television", "radio",
    "the internet", "email", "computers", "sorting algorithms", "databases", "encryption", "robots", "video games",
    "money", "banks", "inflation", "taxes", "elections", "courts", "schools", "languages", "maps", "calendars",
)  # fmt: skip

HELDOUT_TOPICS = ("tea", "lighthouses", "the violin", "glaciers", "butterflies", "museums", "compilers", "honesty")


def prompts(split: str) -> list[str]:
    """All prompts of `split` ("train" or "heldout"), topic by topic."""
    topics = {"train": TRAIN_TOPICS, "heldout": HELDOUT_TOPICS}[split]
    return [template.format(topic=topic) for topic in topics for template in TEMPLATES]
